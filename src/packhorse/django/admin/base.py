"""What the pages of the admin share: who may see them, which store they are about, and how they answer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

import django
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from packhorse.django.admin.places import Place, chosen, places
from packhorse.django.application import Application
from packhorse.errors import ConfigError, JobNotFound, PackhorseError, ScheduleNotFound, StoreError

Crumb = tuple[str, str | None]


class Page:
    """One request: who asks, and about which store."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.places = places()
        self.place: Place = chosen(self.places, request.GET.get("backend"))
        self.app: Application = self.place.application()

    def may(self, permission: str) -> bool:
        return bool(self.request.user.has_perm(f"packhorse.{permission}"))

    def need(self, permission: str) -> None:
        if not self.may(permission):
            raise PermissionDenied

    @property
    def actor(self) -> str:
        return str(self.request.user.get_username())

    @property
    def reason(self) -> str:
        return str(self.request.POST.get("reason", "")).strip()

    @property
    def confirmed(self) -> bool:
        return "confirmed" in self.request.POST

    @property
    def ours(self) -> dict[str, str]:
        """What each link has to say for the store to be the same; nothing where that goes without saying."""
        return {} if self.place is self.places[0] else {"backend": self.place.alias}

    def tell(self, text: str, *, well: bool = True) -> None:
        messages.add_message(self.request, messages.SUCCESS if well else messages.WARNING, text)


class PageAdmin(admin.ModelAdmin):
    """Pages of their own under the name of a model, of which no row is read."""

    routes: Sequence[tuple[str, str, str]] = ()
    """The path, the method that answers, and what the URL's name ends in."""
    posts: Sequence[str] = ()
    """The methods that change something, and take POST alone; all others change nothing, and take GET alone."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        return [
            path(route, self._view(method), name=f"{self.opts.app_label}_{self.opts.model_name}_{name}")
            for route, method, name in self.routes
        ]

    def _view(self, method: str) -> Callable[..., HttpResponse]:
        answer = getattr(self, method)
        allowed = ["POST"] if method in self.posts else ["GET", "HEAD"]

        @functools.wraps(answer)
        def view(request: HttpRequest, **given: str) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            if request.method not in allowed:
                return HttpResponseNotAllowed(allowed)
            try:
                return answer(Page(request), **given)
            except (JobNotFound, ScheduleNotFound) as error:
                messages.error(request, str(error))
                return self._back(request)
            except (ConfigError, StoreError) as error:
                return self._trouble(request, error)

        # The store has connections of its own. A transaction of the request would make them wait for each other.
        for alias in connections:
            view = transaction.non_atomic_requests(alias)(view)
        return self.admin_site.admin_view(view)

    def _trouble(self, request: HttpRequest, error: PackhorseError) -> HttpResponse:
        """Where somebody wanted to change something, back to the list with the words; else there is nothing to show."""
        if request.method == "POST" and not isinstance(error, StoreError):
            messages.error(request, str(error))
            return self._back(request)
        context = {"title": self._plural, "trouble": str(error), "crumbs": self._crumbs([], {})}
        return self._rendered(request, "trouble", context, status=503)

    def _back(self, request: HttpRequest) -> HttpResponse:
        alias = request.GET.get("backend")
        return HttpResponseRedirect(self.url("changelist", **({} if alias is None else {"backend": alias})))

    # Answering.

    def url(self, name: str, *args: str, model: str | None = None, **query: str) -> str:
        """Of a page of ours, on the site this one is on."""
        named = f"{self.admin_site.name}:{self.opts.app_label}_{model or self.opts.model_name}_{name}"
        found = reverse(named, args=args)
        return f"{found}?{urlencode(query)}" if query else found

    def redirect(self, page: Page, name: str = "changelist", *args: str, **query: str) -> HttpResponse:
        return HttpResponseRedirect(self.url(name, *args, **page.ours, **query))

    def render(
        self, page: Page, template: str, title: str, crumbs: Iterable[Crumb] = (), **context: Any
    ) -> HttpResponse:
        tabs = [(place.name, self.url("changelist", backend=place.alias), place is page.place) for place in page.places]
        shared = {
            "title": title,
            "crumbs": self._crumbs(crumbs, page.ours),
            "places": tabs if len(tabs) > 1 else [],
        }
        return self._rendered(page.request, template, shared | context)

    def _rendered(
        self, request: HttpRequest, template: str, context: dict[str, Any], status: int = 200
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        shared = self.admin_site.each_context(request) | {"opts": self.opts, "lists_crumbs": django.VERSION >= (6, 1)}
        return TemplateResponse(request, f"admin/packhorse/{template}.html", shared | context, status=status)

    @property
    def _plural(self) -> str:
        return str(self.opts.verbose_name_plural).capitalize()

    def _crumbs(self, more: Iterable[Crumb], ours: dict[str, str]) -> list[Crumb]:
        below = list(more)
        site = reverse(f"{self.admin_site.name}:app_list", args=[self.opts.app_label])
        here = self.url("changelist", **ours) if below else None
        return [(str(self.opts.app_config.verbose_name), site), (self._plural, here), *below]
