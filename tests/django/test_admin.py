"""The admin's pages and actions, through Django's test client."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from html import unescape
from typing import Any
from unittest.mock import patch

from django.apps import apps
from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from django.test import Client, override_settings
from django.urls import reverse

from packhorse import Act, Change, JobState, Secret, Selection
from packhorse.django.admin import jobs as admin_jobs
from packhorse.django.models import Queue, Task
from packhorse.ids import new_id, to_text
from packhorse.inspection import Inspection
from packhorse.job import NewJob
from packhorse.stores.contract import Paused
from tests.django.helpers import DUMMY, CommittingTestCase, WorkingTestCase, application, performed
from tests.django.shop import tasks
from tests.waiting import wait_until

PAGES = {
    "job_changelist": "view_job",
    "job_audit": "view_job",
    "queue_changelist": "view_queue",
    "task_changelist": "view_task",
    "schedule_changelist": "view_schedule",
    "process_changelist": "view_process",
}
ACTS = {
    ("job", "retry"): "retry_job",
    ("job", "cancel"): "cancel_job",
    ("job", "run_now"): "run_job",
    ("job", "discard"): "discard_job",
    ("queue", "pause"): "pause_queue",
    ("queue", "resume"): "resume_queue",
    ("task", "pause"): "pause_task",
    ("task", "resume"): "resume_task",
    ("schedule", "run_now"): "run_schedule",
    ("schedule", "pause"): "pause_schedule",
    ("schedule", "resume"): "resume_schedule",
}
HOSTILE = "<script>alert('x')</script>\"'&\u202e\x07"
PASSWORD = "correct horse battery staple"


class OnTheAdmin:
    """Somebody who may do everything is logged in; what was done is undone."""

    client: Client

    def setUp(self):
        ContentType.objects.clear_cache()
        create_permissions(apps.get_app_config("packhorse"), verbosity=0)
        self.client.force_login(User.objects.create_superuser("root"))

    def tearDown(self):
        for alias in ("default", "elsewhere"):
            app = application(alias)
            for pause in app.inspection.pauses():
                app.store.resume(pause.name, "the tests", "", kind=pause.kind)
            app.control.act(Selection(), Change(Act.CANCEL))
            app.control.act(Selection(), Change(Act.DISCARD))
        super().tearDown()  # type: ignore[misc]

    def as_one_who_may(self, *permissions: str) -> None:
        user = User.objects.create_user(f"user {User.objects.count()}", is_staff=True)
        wanted = Permission.objects.filter(content_type__app_label="packhorse", codename__in=permissions)
        assert wanted.count() == len(permissions)
        user.user_permissions.set(wanted)
        self.client.force_login(user)

    def get(self, name: str, *args: str, status: int = 200, **query: str) -> str:
        response = self.client.get(url(name, *args), query)
        assert response.status_code == status, response.status_code
        return response.content.decode()

    def post(self, model: str, status: int = 200, query: str = "", **data: Any) -> str:
        """The page to which it leads, as text."""
        response = self.client.post(url(f"{model}_act") + query, data, follow=True)
        assert response.status_code == status, response.content.decode()
        return response.content.decode()

    def act(self, action: str, *ids: str, reason: str = "") -> str:
        """On jobs, with the question answered by yes if there is one; what it said."""
        page = self.post("job", action=action, _selected_action=ids)
        if 'name="confirmed"' in page:
            page = self.post("job", action=action, ids=hidden(page, "ids"), reason=reason, confirmed="yes")
        return message(page)


def url(name: str, *args: str) -> str:
    return reverse(f"admin:packhorse_{name}", args=args)


def message(page: str) -> str:
    return unescape("; ".join(re.findall(r'<li class="(?:success|warning|error)">(.*?)</li>', page)))


def hidden(page: str, name: str) -> str:
    return found(rf'name="{name}" value="([^"]*)"', page)


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, f"no {pattern} in {text}"
    return match[1]


def ids_on(page: str) -> list[str]:
    return re.findall(r'name="_selected_action" value="([^"]+)"', page)


def state(id: str, alias: str = "default") -> JobState:
    return application(alias).inspection.stored(id).state


class Pages(OnTheAdmin, CommittingTestCase):
    def test_the_index_leads_to_them(self):
        page = self.client.get(reverse("admin:index")).content.decode()
        for name in PAGES:
            if name != "job_audit":
                assert f'href="{url(name)}"' in page
        assert "/add/" not in page.partition("app-packhorse")[2].partition("</table>")[0]

    def test_an_empty_store(self):
        for name in PAGES:
            self.get(name)
        assert "No job matches." in self.get("job_changelist")
        assert "No processes: nobody performs jobs now." in self.get("process_changelist")

    def test_1B_32_jobs_in_every_state_are_listed_and_filtered(self):
        app = application()
        made = {
            "scheduled": tasks.double.using(run_after=timedelta(hours=1)).enqueue(1).id,
            "waiting": tasks.book.enqueue("ann").id,  # for a permit
            "ready": tasks.double.using(queue_name="mail").enqueue(1).id,
            "cancelled": tasks.double.using(run_after=timedelta(hours=1)).enqueue(2).id,
        }
        app.control.cancel([made["cancelled"]], reason="not wanted")
        assert sorted(ids_on(self.get("job_changelist"))) == sorted(made.values())
        for name, id in made.items():
            assert ids_on(self.get("job_changelist", state=name)) == [id]
        for name in {state.value for state in JobState} - made.keys():
            assert ids_on(self.get("job_changelist", state=name)) == []
        assert ids_on(self.get("job_changelist", queue="mail")) == [made["ready"]]
        assert ids_on(self.get("job_changelist", task=tasks.book.module_path)) == [made["waiting"]]
        assert ids_on(self.get("job_changelist", q=made["ready"])) == [made["ready"]]
        assert ids_on(self.get("job_changelist", q=made["ready"].upper())) == [made["ready"]]
        assert ids_on(self.get("job_changelist", q=tasks.book.module_path)) == [made["waiting"]]
        assert ids_on(self.get("job_changelist", q="nonsense")) == []
        assert "not wanted" in self.get("job_changelist", state="cancelled")
        self.get("job_changelist", state="nonsense", status=404)

    def test_pages_go_by_cursor_both_ways(self):
        ids = [tasks.double.enqueue(number).id for number in range(120)][::-1]
        seen: list[str] = []
        address, pages = url("job_changelist"), []
        while address:
            page = self.client.get(address).content.decode()
            pages.append(ids_on(page))
            seen += pages[-1]
            older = re.search(r'<a href="(\?[^"]*)" rel="next">', page)
            address = url("job_changelist") + unescape(older[1]) if older else ""
        assert seen == ids
        assert [len(page) for page in pages] == [50, 50, 20]
        newer = found(r'<a href="(\?[^"]*)" rel="prev">', page)
        back = self.client.get(url("job_changelist") + unescape(newer)).content.decode()
        assert ids_on(back) == pages[1]
        with patch.object(Inspection, "queues", side_effect=AssertionError("that counts all jobs")):
            self.get("job_changelist", state="ready")

    def test_what_is_not_there(self):
        gone = to_text(new_id())
        for id in (gone, "nonsense"):
            response = self.client.get(url("job_change", id), follow=True)
            assert "no job" in message(response.content.decode()).casefold()
            assert response.redirect_chain == [(url("job_changelist"), 302)]
        response = self.client.get(url("schedule_show"), {"key": "nothing"}, follow=True)
        assert "nothing" in message(response.content.decode())
        self.get("job_changelist", backend="nonsense", status=404)
        self.client.get(url("job_changelist"), {"older": "nonsense"}, follow=True)

    def test_several_backends_side_by_side(self):
        """Entries of TASKS that share a database are one place; others are chosen by a tab, and links stay there."""
        here = tasks.double.enqueue(1).id
        elsewhere = tasks.at_once.enqueue(1).id
        page = self.get("job_changelist")
        assert ids_on(page) == [here]
        assert ">default, any_queue</a>" in page
        page = self.get("job_changelist", backend="elsewhere")
        assert ids_on(page) == [elsewhere]
        assert f"{url('job_change', elsewhere)}?backend=elsewhere" in page
        page = self.get("job_change", elsewhere, backend="elsewhere")
        assert f"{url('job_act')}?backend=elsewhere" in page
        page = self.post("job", action="discard", _selected_action=[elsewhere], query="?backend=elsewhere")
        asked: Any = {"action": "discard", "ids": hidden(page, "ids"), "confirmed": "yes"}
        assert message(self.post("job", query="?backend=elsewhere", **asked)) == "Discarded 1 job."
        assert not list(application("elsewhere").inspection.jobs())
        assert state(here) == "ready"

    def test_nothing_comes_from_elsewhere(self):
        id = tasks.double.enqueue(1).id
        for page in (*(self.get(name) for name in PAGES), self.get("job_change", id)):
            for address in re.findall(r'(?:src|href|action)="([^"]*)"', page):
                assert not re.match(r"(?i)\w+:|//", address), address
            assert not re.search(r"<script(?![^>]*src=)", page)
            assert not re.search(r"<[^>]+\s(?:on\w+|style)=", page)

    def test_on_another_site(self):
        id = tasks.double.enqueue(1).id
        page = self.client.get(reverse("second:packhorse_job_change", args=[id])).content.decode()
        addresses = re.findall(r'(?:href|action)="(/(?!static)[^"]*)"', page)
        assert addresses
        assert all(address.startswith("/second/") or address == "/" for address in addresses)

    def test_a_store_that_cannot_be_used(self):
        store = {"BACKEND": "packhorse.django.PackhorseBackend", "OPTIONS": {"store": "sqlite:////proc/nothing/x.db"}}
        with override_settings(TASKS={"default": store}):
            for name in PAGES:
                assert "The jobs cannot be looked at now" in self.get(name, status=503)
        with override_settings(TASKS={"default": {"BACKEND": DUMMY}}):
            assert "No entry of TASKS" in self.get("job_changelist", status=503)

    def test_a_site_without_the_admin(self):
        """Then it is not imported, and nothing is missing."""
        script = (
            "import django, sys; from django.conf import settings; from django.core.management import call_command\n"
            "apps = ['django.contrib.contenttypes', 'django.contrib.auth', 'packhorse.django']\n"
            "base = {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'no.db'}\n"
            "tasks = {'default': {'BACKEND': 'packhorse.django.PackhorseBackend'}}\n"
            "settings.configure(SECRET_KEY='only these tests are signed with it 0b5e2f', INSTALLED_APPS=apps,"
            " DATABASES={'default': base}, TASKS=tasks, USE_TZ=True)\n"
            "django.setup(); call_command('check'); assert 'packhorse.django.admin' not in sys.modules\n"
        )
        environment = {name: it for name, it in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=environment)


class Rights(OnTheAdmin, CommittingTestCase):
    def test_whoever_is_not_logged_in_is_asked_to(self):
        self.client.logout()
        for name in PAGES:
            response = self.client.get(url(name))
            assert (response.status_code, "login" in response["Location"]) == (302, True)
        self.client.force_login(User.objects.create_user("visitor"))
        assert self.client.get(url("job_changelist")).status_code == 302

    def test_each_page_needs_its_permission(self):
        id = tasks.double.enqueue(1).id
        self.as_one_who_may()
        for name in PAGES:
            self.get(name, status=403)
        self.get("job_change", id, status=403)
        self.get("schedule_show", key="often", status=403)
        for name, permission in PAGES.items():
            self.as_one_who_may(permission)
            self.get(name)
            for other, its in PAGES.items():
                if its != permission:
                    self.get(other, status=403)

    def test_each_action_needs_its_permission(self):
        """All others together do not do; and what nobody may do has no button."""
        application().schedules.save()
        every = {*ACTS.values(), *PAGES.values()}
        id = tasks.double.using(run_after=timedelta(hours=1)).enqueue(1).id
        for (model, action), permission in ACTS.items():
            self.as_one_who_may(*(every - {permission}))
            data = {"action": action, "confirmed": "yes"}
            data |= {"ids": id} if model == "job" else {"name": {"queue": "mail", "task": "x"}.get(model, "often")}
            self.post(model, status=403, **data)
            page = self.get(f"{model}_changelist")
            assert f'value="{action}"' not in page, (model, action)
        assert state(id) == "scheduled"
        assert application().inspection.pauses() == []
        assert not application().schedules.get("often").paused

    def test_each_action_needs_no_more_than_its_permission(self):
        self.as_one_who_may("view_job", "cancel_job")
        id = tasks.double.enqueue(1).id
        page = self.get("job_change", id)
        assert re.findall(r'name="action" value="(\w+)"', page) == ["cancel"]
        assert self.act("cancel", id) == "Cancelled 1 job."
        self.as_one_who_may("cancel_job")
        self.post("job", status=403, action="cancel", ids=id, confirmed="yes")

    def test_there_is_a_permission_for_each(self):
        known = Permission.objects.filter(content_type__app_label="packhorse").values_list("codename", flat=True)
        views = {f"view_{name}" for name in ("job", "payload", "process", "schedule", "pause", "queue", "task")}
        assert set(known) == {*ACTS.values(), *views, "view_job_arguments"}

    def test_changes_need_a_post_with_a_token(self):
        id = tasks.double.enqueue(1).id
        for model in ("job", "queue", "task", "schedule"):
            assert self.client.get(url(f"{model}_act"), {"action": "cancel", "ids": id}).status_code == 405
            assert self.client.post(url(f"{model}_changelist"), {"action": "cancel", "ids": id}).status_code == 405
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(User.objects.get(username="root"))
        data = {"action": "cancel", "ids": id, "confirmed": "yes"}
        assert strict.post(url("job_act"), data).status_code == 403
        assert state(id) == "ready"
        strict.get(url("job_changelist"))
        token = strict.cookies["csrftoken"].value
        assert strict.post(url("job_act"), data | {"csrfmiddlewaretoken": token}).status_code == 302
        assert state(id) == "cancelled"


class Acting(OnTheAdmin, CommittingTestCase):
    def later(self, number: int = 1) -> list[str]:
        return [tasks.double.using(run_after=timedelta(hours=1)).enqueue(it).id for it in range(number)]

    def test_run_now(self):
        [id] = self.later()
        assert self.act("run_now", id) == "Made ready 1 job."
        assert state(id) == "ready"

    def test_many_are_asked_about_first(self):
        ids = self.later(3)
        page = self.post("job", action="run_now", _selected_action=ids)
        assert "Run now 3 jobs?" in page
        assert {state(id) for id in ids} == {"scheduled"}
        application().control.cancel(ids[:1])
        page = self.post("job", action="run_now", ids=hidden(page, "ids"), reason="in a hurry", confirmed="yes")
        assert message(page) == ("Made ready 2 jobs. 1 job was not scheduled any more, and was left alone.")
        assert [state(id) for id in ids] == ["cancelled", "ready", "ready"]
        [last, *_] = application().inspection.audit()
        assert (last.actor, last.act, last.reason, last.jobs) == ("root", "run_now", "in a hurry", 2)
        page = self.get("job_audit")
        assert "in a hurry" in page
        assert "<td>root</td>" in page

    def test_what_destroys_asks_also_about_one(self):
        [id] = self.later()
        for action in ("cancel", "discard"):
            page = self.post("job", action=action, _selected_action=[id])
            assert 'name="confirmed"' in page
            assert state(id) == "scheduled"
        assert self.act("discard", id) == "Discarded 1 job."
        assert not list(application().inspection.jobs())
        assert "Discard 0 jobs?" in self.post("job", action="discard", _selected_action=[id])

    def test_cancel_and_retry(self):
        ids = self.later(2)
        assert self.act("cancel", *ids, reason="a mistake") == "Cancelled 2 jobs."
        assert application().inspection.stored(ids[0]).reason == "a mistake"
        assert self.act("retry", ids[0]) == "Retried 1 job."
        assert [state(id) for id in ids] == ["ready", "cancelled"]

    def test_those_in_another_state_are_told_of(self):
        ids = self.later(2)
        page = self.post("job", action="retry", _selected_action=ids)
        assert "2 jobs of those chosen are not failed or cancelled, and will be left alone." in page
        assert 'name="confirmed"' not in page
        assert self.act("retry", ids[0]) == (
            "Retried 0 jobs. 1 job was not failed or cancelled any more, and was left alone."
        )

    def test_all_that_match(self):
        """Those that matched when it was asked, and as many as one request can bear."""
        ids = self.later(4)
        tasks.double.enqueue(1)
        before = admin_jobs.ALL_CAP
        admin_jobs.ALL_CAP = 3
        try:
            page = self.post("job", query="?state=scheduled", action="cancel", select_across="1")
            assert "Cancel 3 jobs?" in page
            assert "there may be more" in page
            assert hidden(page, "ids").split() == ids[:0:-1]
            page = self.post("job", query="?state=scheduled", action="cancel", ids=hidden(page, "ids"), confirmed="yes")
            assert message(page) == "Cancelled 3 jobs."
            assert [state(id) for id in ids] == ["scheduled", "cancelled", "cancelled", "cancelled"]
            assert ids_on(page) == ids[:1]  # the list is filtered as before
            assert (
                self.client.post(url("job_act"), {"action": "retry", "ids": " ".join(ids), "confirmed": 1}).status_code
                == 400
            )
        finally:
            admin_jobs.ALL_CAP = before

    def test_nothing_chosen(self):
        assert message(self.post("job", action="", _selected_action=["x"])) == "Choose an action first."
        assert message(self.post("job", action="explode")) == "Choose an action first."
        assert message(self.post("job", action="retry")) == "No jobs were chosen."
        assert "nonsense" in message(self.post("job", action="retry", _selected_action=["nonsense"]))

    def test_from_the_page_of_a_job_and_back_to_it(self):
        [id] = self.later()
        response = self.client.post(url("job_act"), {"action": "run_now", "_selected_action": [id], "from": id})
        assert response["Location"] == url("job_change", id)
        asked: dict[str, Any] = {"action": "discard", "_selected_action": [id], "from": id}
        page = self.post("job", **asked)
        assert f'href="{url("job_change", id)}"' in found(r"(<a [^>]*>)No, take me back", page)
        data = {"action": "discard", "ids": id, "from": id, "confirmed": "yes"}
        assert self.client.post(url("job_act"), data)["Location"] == url("job_changelist")

    def test_whoever_says_no_is_back_on_the_list_they_came_from(self):
        """By an address, so also before any script of the page is there."""
        page = self.post("job", query="?state=scheduled", action="discard", _selected_action=self.later())
        assert f'href="{url("job_changelist")}?state=scheduled"' in found(r"(<a [^>]*>)No, take me back", page)

    def test_a_request_in_a_transaction_waits_for_nobody(self):
        """ATOMIC_REQUESTS would have Django hold the write lock that the store waits for."""
        [id] = self.later()
        with atomic_requests():
            assert self.act("run_now", id) == "Made ready 1 job."
            self.post("queue", action="pause", name="mail", confirmed="yes")
            self.post("schedule", action="run_now", name="often")

    def test_queues_are_paused_and_resumed(self):
        tasks.double.using(queue_name="mail").enqueue(1)
        page = self.get("queue_changelist")
        assert f'href="{url("job_changelist")}?queue=mail&amp;state=ready">1</a>' in page
        assert 'value="resume"' not in page
        page = self.post("queue", action="pause", name="mail")
        assert "Pause queue mail?" in page
        assert application().inspection.pauses() == []
        page = self.post("queue", action="pause", name="mail", reason="it moves", lasting="soon", confirmed="yes")
        assert "is no duration" in page
        assert 'value="it moves"' in page
        page = self.post("queue", action="pause", name="mail", reason="it moves", lasting="2h", confirmed="yes")
        assert message(page) == "Queue mail is paused for 2h."
        assert "by root: it moves" in page
        [pause] = application().inspection.pauses()
        assert (pause.name, pause.kind, pause.actor, pause.reason) == ("mail", Paused.QUEUE, "root", "it moves")
        assert pause.until is not None
        assert [it.name for it in Queue.objects.all()] == ["mail"]
        assert list(Task.objects.all()) == []
        assert message(self.post("queue", action="resume", name="mail")) == "Queue mail goes on."
        assert message(self.post("queue", action="resume", name="mail")) == "Queue mail was not paused."
        assert application().inspection.pauses() == []
        assert "cannot be a queue name" in message(self.post("queue", action="pause", name="a b", confirmed="yes"))

    def test_tasks_are_paused_and_resumed(self):
        name = tasks.book.module_path
        page = self.get("task_changelist")
        assert name in page
        assert "at most 1 of" in page
        assert message(self.post("task", action="pause", name=name, confirmed="yes")).startswith(
            f"Task {name} is paused"
        )
        [pause] = application().inspection.pauses()
        assert (pause.name, pause.kind) == (name, Paused.TASK)
        assert "paused until somebody resumes it, by root" in self.get("task_changelist")
        assert message(self.post("task", action="resume", name=name)) == f"Task {name} goes on."
        assert "no task" in message(self.post("task", action="pause", name="nobody.knows", confirmed="yes"))

    def test_schedules(self):
        app = application()
        app.register_declared()
        app.schedules.save()
        page = self.get("schedule_changelist")
        assert "at_four" in page
        assert tasks.recur.module_path in page
        page = self.get("schedule_show", key="at_four")
        assert "0 4 * * *" in page
        assert "&quot;at_four&quot;" in page
        assert page.count("04:00:00 UTC") >= 5
        said = message(self.post("schedule", action="run_now", name="at_four"))
        id = found(r"^Schedule at_four: enqueued job (\S+)\.$", said)
        assert (state(id), app.inspection.stored(id).queue) == ("ready", "mail")
        assert "is paused" in message(self.post("schedule", action="pause", name="at_four"))
        assert app.schedules.get("at_four").paused
        assert "Next, if it were not paused" in self.get("schedule_show", key="at_four")
        assert "goes on, next at" in message(self.post("schedule", action="resume", name="at_four"))
        assert not app.schedules.get("at_four").paused
        assert self.client.post(url("schedule_act"), {"action": "explode", "name": "at_four"}).status_code == 400
        assert "nobody" in message(self.post("schedule", action="run_now", name="nobody"))


@contextmanager
def atomic_requests():
    for alias in connections:
        connections[alias].settings_dict["ATOMIC_REQUESTS"] = True
    try:
        yield
    finally:
        for alias in connections:
            connections[alias].settings_dict["ATOMIC_REQUESTS"] = False


class Hostile(OnTheAdmin, CommittingTestCase):
    """Whoever can write to the store writes what they like into it."""

    def test_nothing_becomes_markup(self):
        app, id = application(), new_id()
        app.store.insert(
            [NewJob(id, task=HOSTILE, payload=b"no envelope", queue=HOSTILE, tags=(HOSTILE,), share=HOSTILE)]
        )
        later = NewJob(new_id(), task=HOSTILE, payload=b"", queue=HOSTILE, delay=10**10)
        app.store.insert([later])
        app.store.move(Selection(ids=[later.id]), Change(Act.CANCEL), HOSTILE, HOSTILE)
        for kind in Paused:
            app.store.pause(HOSTILE, None, HOSTILE, HOSTILE, kind=kind)
        given = tasks.keep.enqueue(HOSTILE, named={HOSTILE: HOSTILE}).id
        shown = [self.get(name) for name in PAGES]
        shown += [self.get("job_change", it) for it in (to_text(id), to_text(later.id), given)]
        shown += [self.get("job_changelist", queue=HOSTILE, task=HOSTILE, q=HOSTILE)]
        shown += [self.post("job", action="discard", _selected_action=[to_text(id), given])]
        shown += [self.post("queue", action="pause", name=HOSTILE), self.post("queue", action="resume", name=HOSTILE)]
        for page in shown:
            assert "<script>alert" not in page
            assert "\u202e" not in re.sub(r' value="[^"]*"', "", page)
        assert "&lt;script&gt;" in shown[0]
        assert "cannot be shown" in self.get("job_change", to_text(id))

    def test_an_order_to_go_elsewhere(self):
        [id] = Acting.later(self)
        data = {"action": "run_now", "_selected_action": [id], "from": "https://example.com/"}
        assert self.client.post(url("job_act"), data)["Location"] == url("job_changelist")


class Working(OnTheAdmin, WorkingTestCase):
    """With a worker."""

    def test_a_job_that_failed(self):
        id = performed(tasks.never, f"because of {HOSTILE}").id
        page = self.get("job_changelist", state="failed")
        assert "ValueError: because of &lt;script&gt;" in page
        page = self.get("job_change", id)
        assert "<script>alert" not in page
        assert "attempt 1" in page
        assert "Traceback (most recent call last)" in page
        assert "raise ValueError(why)" in page
        assert '<th scope="row">attempts</th><td>2</td>' in page
        assert re.findall(r'name="action" value="(\w+)"', page) == ["retry", "discard"]
        assert self.act("retry", id) == "Retried 1 job."
        wait_until(lambda: state(id) == "failed", "it fails again")
        assert self.get("job_change", id).count("<article") == 4

    def test_a_job_that_succeeded(self):
        id = performed(tasks.double, 21).id
        page = self.get("job_change", id)
        assert "<code>number</code></th><td><code>21</code>" in page
        assert "<p><code>42</code></p>" in page
        assert re.search(r'<th scope="row">ran</th><td>\d', page)

    def test_what_is_secret_is_masked(self):
        id = performed(tasks.keep, Secret(PASSWORD), PASSWORD[::-1], password=PASSWORD, nested={"api_key": PASSWORD}).id
        page = self.get("job_change", id)
        assert PASSWORD not in page
        assert page.count("•••") >= 3
        assert "nested" in page
        self.as_one_who_may("view_job")
        page = self.get("job_change", id)
        assert "needs the permission" in page
        assert "nested" not in page
        assert PASSWORD[::-1] not in page
        self.get("schedule_changelist", status=403)

    def test_who_runs_and_what_they_do(self):
        id = tasks.wait.enqueue().id
        wait_until(lambda: state(id) == "running", "it runs")
        page = self.get("process_changelist")
        for role in ("worker", "dispatcher", "scheduler"):
            assert f"<td>{role}</td>" in page
        assert f'href="{url("job_change", id)}">{tasks.wait.module_path}</a>' in page
        assert "s left" in page
        page = self.post("job", action="cancel", _selected_action=[id])
        assert "1 running job will be asked to end" in page
        tasks.gate.set()
        self.as_one_who_may("view_process")
        assert url("job_change", id) not in self.get("process_changelist")

    def test_how_far_a_job_is(self):
        id = performed(tasks.third_time_lucky).id
        page = self.get("job_change", id)
        assert "1 of 1 (100 %): done" in page
        assert page.count("<article") == 2
