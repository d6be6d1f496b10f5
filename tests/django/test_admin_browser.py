"""The admin as somebody with a browser sees it: Debian's Chromium, a live server, and a worker that performs."""

import os
import re
import shutil
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles.testing import StaticLiveServerTestCase
from django.urls import reverse
from playwright.sync_api import Page, expect, sync_playwright

from packhorse import JobState, Selection
from tests.django import settings
from tests.django.helpers import application, working
from tests.django.shop import tasks
from tests.django.test_admin import HOSTILE, OnTheAdmin, url
from tests.waiting import wait_until

PATIENCE = 30.0
CHROMIUM = shutil.which("chromium")
PASSWORD = "for the tests alone"


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; scripts/install-for-tests installs it")
class Browsing(OnTheAdmin, StaticLiveServerTestCase):
    databases = {"default", "other"}
    available_apps = settings.INSTALLED_APPS
    page: Page

    @classmethod
    def setUpClass(cls):
        # Playwright has a loop in this thread, where Django would forbid its connections although nobody waits.
        before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
        cls.addClassCleanup(lambda: os.environ.pop("DJANGO_ALLOW_ASYNC_UNSAFE") if before is None else None)
        super().setUpClass()
        cls.enterClassContext(working())
        playwright = cls.enterClassContext(sync_playwright())
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        cls.browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        super().setUp()
        user = User.objects.get(username="root")
        user.set_password(PASSWORD)
        user.save()
        context = self.browser.new_context(viewport={"width": 1280, "height": 900})
        self.addCleanup(context.close)
        context.set_default_timeout(PATIENCE * 1_000)
        expect.set_options(timeout=PATIENCE * 1_000)
        self.page = context.new_page()
        self.wrong: list[str] = []
        self.page.on("request", self._look_at_request)
        self.page.on("response", self._look_at_response)
        self.page.route("**/favicon.ico", lambda route: route.fulfill(status=204))  # which no page names
        self.page.on("console", self._look_at_console)
        self.page.on("pageerror", lambda it: self.wrong.append(str(it)))
        self.page.on("dialog", lambda it: self.wrong.append(it.message))
        self._log_in()

    def tearDown(self):
        tasks.gate.set()
        super().tearDown()
        assert self.wrong == []

    def _look_at_request(self, request: Any) -> None:
        if not request.url.startswith((self.live_server_url, "data:")):
            self.wrong.append(request.url)

    def _look_at_response(self, response: Any) -> None:
        if response.status >= 400:
            self.wrong.append(f"{response.status} {response.url}")

    def _look_at_console(self, message: Any) -> None:
        if message.type == "error":
            self.wrong.append(f"{message.text} {message.location}")

    def _log_in(self) -> None:
        self.page.goto(self.live_server_url + reverse("admin:index"))
        self.page.get_by_label("Username").fill("root")
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Log in").click()

    def open(self, name: str, *args: str, query: str = "") -> None:
        self.page.goto(self.live_server_url + url(name, *args) + query)

    def sees_state(self, state: str) -> None:
        """Looks again until the page of a job says so."""

        def shown() -> bool:
            self.page.reload()
            return self.page.locator(".packhorse-now").inner_text() == state

        wait_until(shown, f"the page says {state}")

    def says(self, text: str) -> None:
        expect(self.page.locator(".messagelist")).to_contain_text(text)

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def test_a_job_is_watched_until_it_has_succeeded(self):
        id = tasks.wait.enqueue().id
        self.page.get_by_role("link", name="Jobs", exact=True).first.click()
        self.page.get_by_role("link", name=id).click()
        self.sees_state("running")
        self.open("process_changelist")
        expect(self.page.get_by_role("row", name=re.compile("worker"))).to_contain_text(tasks.wait.module_path)
        tasks.gate.set()
        self.open("job_change", id)
        self.sees_state("succeeded")

    def test_a_failed_job_is_retried(self):
        id = tasks.enter.enqueue("<b>ann</b>").id
        self.open("job_change", id)
        self.sees_state("failed")
        expect(self.page.locator("pre")).to_contain_text("PermissionError: the gate is closed to <b>ann</b>")
        self.open("job_changelist")
        self.page.get_by_role("link", name="failed", exact=True).click()
        self.page.get_by_role("link", name=id).click()
        tasks.gate.set()
        self.click("Retry")
        self.says("Retried 1 job.")
        self.sees_state("succeeded")
        expect(self.page.get_by_role("region", name="Result")).to_contain_text("<b>ann</b> is inside")

    def test_many_are_chosen_and_discarded(self):
        results = [tasks.double.using(run_after=timedelta(hours=1)).enqueue(number) for number in range(3)]
        self.open("job_changelist", query="?state=scheduled")
        self.page.locator("#action-toggle").check()
        expect(self.page.locator(".action-counter")).to_have_text("3 of 3 selected")
        self.page.get_by_role("checkbox", name=results[0].id).uncheck()
        expect(self.page.locator(".action-counter")).to_have_text("2 of 3 selected")
        self.page.get_by_label("Action:").select_option("Discard")
        self.page.locator(".actions button").click()
        expect(self.page.get_by_role("heading", name="Discard 2 jobs?")).to_be_visible()
        self.page.get_by_role("button", name="No, take me back").click()
        expect(self.page.locator("#result_list tbody tr")).to_have_count(3)
        self.page.get_by_label("Action:").select_option("Discard")
        self.page.get_by_role("checkbox", name=results[1].id).check()
        self.page.get_by_role("checkbox", name=results[2].id).check()
        self.page.locator(".actions button").click()
        self.page.get_by_label("Reason").fill("not needed")
        self.page.get_by_role("button", name=re.compile("^Yes")).click()
        self.says("Discarded 2 jobs.")
        expect(self.page.locator("#result_list tbody tr")).to_have_count(1)
        left = application().inspection.jobs(Selection(states={JobState.SCHEDULED}))
        assert [job.id for job in left] == [results[0].id]
        self.page.get_by_role("link", name="What operators did").click()
        expect(self.page.get_by_role("row", name=re.compile("root discard")).first).to_contain_text("not needed")

    def test_a_queue_is_paused_and_resumed(self):
        self.page.get_by_role("link", name="Queues", exact=True).first.click()
        self.click("Pause queue mail")
        self.page.get_by_label("Reason").fill("the mail server moves")
        self.page.get_by_label("For").fill("2h")
        self.click("Pause")
        self.says("Queue mail is paused for 2h.")
        expect(self.page.get_by_role("row", name=re.compile("^mail"))).to_contain_text("the mail server moves")
        id = tasks.double.using(queue_name="mail").enqueue(21).id
        behind = tasks.double.enqueue(1).id
        self.open("job_change", behind)
        self.sees_state("succeeded")
        self.open("queue_changelist")
        self.page.get_by_role("row", name=re.compile("^mail")).get_by_role("link", name="1", exact=True).click()
        self.page.get_by_role("link", name=id).click()
        self.sees_state("ready")
        self.open("queue_changelist")
        self.click("Resume queue mail")
        self.says("Queue mail goes on.")
        self.open("job_change", id)
        self.sees_state("succeeded")

    def test_a_scheduled_job_is_run_now(self):
        id = tasks.double.using(run_after=timedelta(hours=1)).enqueue(21).id
        self.open("job_changelist")
        self.page.locator("#searchbar").fill(id)
        self.page.locator("#searchbar").press("Enter")
        self.page.get_by_role("link", name=id).click()
        self.sees_state("scheduled")
        self.click("Run now")
        self.says("Made ready 1 job.")
        self.sees_state("succeeded")
        expect(self.page.get_by_role("region", name="Result")).to_contain_text("42")

    def test_a_schedule_is_run_now_and_paused(self):
        wait_until(lambda: any(it.key == "at_four" for it in application().schedules.all()), "schedules are saved")
        self.open("schedule_changelist")
        self.page.get_by_role("link", name="at_four", exact=True).click()
        self.click("Run now")
        self.says("Schedule at_four: enqueued job")
        self.click("Pause")
        self.says("is paused until somebody resumes it")
        self.click("Resume")
        self.says("Schedule at_four goes on")
        wait_until(lambda: "at_four" in tasks.moments, "its job is performed")

    def test_hostile_texts_do_nothing(self):
        """Whatever they would do is seen: dialogs, errors and requests are watched in every test."""
        id = tasks.enter.enqueue(f"{HOSTILE}<img src=x onerror=alert(1)>").id
        self.open("job_change", id)
        self.sees_state("failed")
        self.open("job_changelist", query="?state=failed&q=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E")
        expect(self.page.get_by_text("No job matches.")).to_be_visible()
        self.open("job_changelist")
        expect(self.page.locator(".field-error", has_text="<img src=x")).to_be_visible()
