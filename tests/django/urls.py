"""Views of the tests' site."""

from django.contrib import admin
from django.http import HttpRequest, JsonResponse
from django.urls import path

from packhorse.django.admin import register
from tests.django.shop.models import Order
from tests.django.shop.tasks import double, keep


def order(request: HttpRequest) -> JsonResponse:
    """A row and a job, and an error where one is asked for."""
    made = Order.objects.create(number=int(request.GET["number"]))
    result = keep.enqueue(made.pk)
    if "fail" in request.GET:
        raise RuntimeError("asked for")
    return JsonResponse({"id": result.id})


async def adouble(request: HttpRequest) -> JsonResponse:
    result = await double.aenqueue(int(request.GET["number"]))
    found = await double.aget_result(result.id)
    return JsonResponse({"id": result.id, "status": found.status})


def sync_in_async_view(number: int) -> str:
    return str(double.enqueue(number).id)


async def blocking(request: HttpRequest) -> JsonResponse:
    """What Django forbids its own connections: it works all the same."""
    return JsonResponse({"id": sync_in_async_view(int(request.GET["number"]))})


second = admin.AdminSite("second")
register(second)

urlpatterns = [
    path("order/", order),
    path("adouble/", adouble),
    path("blocking/", blocking),
    path("admin/", admin.site.urls),
    path("second/", second.urls),
]
