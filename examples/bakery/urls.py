from django.contrib import admin
from django.urls import path

from bakery import views

urlpatterns = [
    path("", views.index),
    path("orders/", views.orders),
    path("orders/<str:id>/", views.order),
    path("admin/", admin.site.urls),
]
