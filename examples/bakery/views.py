"""A form that enqueues, and what became of an order."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.middleware.csrf import get_token
from django.utils.html import format_html

from bakery.tasks import bake

FORM = """<!doctype html><title>Bakery</title><form method="post" action="/orders/">
<input type="hidden" name="csrfmiddlewaretoken" value="{}">
<input name="bread" value="rye"> <input name="loaves" type="number" value="3" min="1" max="99">
<button>Bake</button></form><p><a href="/admin/">Admin</a></p>"""


def index(request: HttpRequest) -> HttpResponse:
    return HttpResponse(format_html(FORM, get_token(request)))


def orders(request: HttpRequest) -> HttpResponse:
    """The job is part of the transaction: it is there when that commits, and not before."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    with transaction.atomic():
        result = bake.enqueue(request.POST["bread"], int(request.POST["loaves"]))
    return HttpResponseRedirect(f"/orders/{result.id}/")


def order(request: HttpRequest, id: str) -> JsonResponse:
    result = bake.get_result(id)
    value = result.return_value if result.status == "SUCCESSFUL" else None
    return JsonResponse({"id": id, "status": str(result.status), "result": value})
