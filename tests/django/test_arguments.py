"""What may be passed to a task, and what it gets."""

import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.files.base import ContentFile
from django.db import transaction
from django.db.models import IntegerChoices, TextChoices
from django.test import TestCase
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy, override

from packhorse import FailureKind, JobState, Selection
from packhorse.django import DeserializationError, InvalidArgument, ModelReference
from tests.django.helpers import Status, WorkingTestCase, application, ended, performed
from tests.django.shop import tasks
from tests.django.shop.models import Order, Parcel
from tests.waiting import wait_until


class Travelling(WorkingTestCase):
    def test_1B_10_times_and_models_come_back_the_same(self):
        """Section 5, test 6: a handle, one row, the same values in the task."""
        order, parcel = Order.objects.create(number=4), Parcel.objects.create()
        given = {
            "moment": datetime(2026, 3, 29, 2, 30, tzinfo=UTC),
            "day": date(2026, 3, 29),
            "clock": time(2, 30),
            "length": timedelta(days=1, seconds=2, microseconds=3),
            "price": Decimal("9.90"),
            "key": uuid.uuid4(),
            "raw": b"\x00\xff",
            "order": order,
            "parcels": [parcel, {"nested": (order,)}],
        }
        chosen = Selection(tasks={tasks.keep.module_path})
        before = application().inspection.count(chosen)
        result = tasks.keep.enqueue(1, **given)
        assert result.kwargs["order"] == ModelReference("shop.order", order.pk, "default")
        assert result.kwargs["moment"] == given["moment"]
        assert ended(result).status == Status.SUCCESSFUL
        assert application().inspection.count(chosen) == before + 1
        assert tasks.seen == [((1,), given)]
        assert type(tasks.seen[0][1]["order"]) is Order

    def test_1C_29_a_result_is_the_same_wherever_it_comes_from(self):
        order = Order.objects.create()
        with transaction.atomic():
            result = tasks.anything.enqueue({"of": [order, timedelta(1), (1, 2)]})
            assert tasks.anything.get_result(result.id) == result

    def test_models_are_fetched_when_the_task_begins(self):
        order = Order.objects.create(number=1)
        with transaction.atomic():
            result = tasks.pay.enqueue(order)
            Order.objects.filter(pk=order.pk).update(number=2)
        assert ended(result).return_value == 2
        order.refresh_from_db()
        assert order.paid

    def test_by_coroutines_too(self):
        order = Order.objects.create(number=1)
        assert performed(tasks.apay, order).return_value == 1
        order.refresh_from_db()
        assert order.paid

    def test_from_the_database_they_came_from(self):
        order = Order.objects.using("other").create(number=5)
        assert performed(tasks.pay, order).return_value == 5
        assert Order.objects.using("other").get().paid
        assert not Order.objects.exists()

    def test_a_manager_that_hides_rows_decides_nothing(self):
        parcel = Parcel.objects.create(hidden=True)
        result = performed(tasks.anything, parcel)
        assert result.status == Status.SUCCESSFUL
        assert tasks.seen == [parcel]

    def test_models_in_results_are_references(self):
        order = Order.objects.create()
        result = performed(tasks.anything, order)
        assert result.return_value == ModelReference("shop.order", order.pk, "default")
        assert result.return_value.fetch() == order

    def test_1B_11_a_missing_row_fails_the_job_as_undecodable_and_the_worker_lives_on(self):
        """Section 5, test 5: failed with a kind, worker lives, slot and limit are released."""
        order = Order.objects.create()
        with transaction.atomic():
            missing = [tasks.pay.enqueue(order), tasks.apay.enqueue(order)]
            order.delete()
        for result in missing:
            ended(result)
            job = result.job.look()
            assert job.failure is not None
            assert (job.state, job.failure.kind) == (JobState.FAILED, FailureKind.UNDECODABLE)
            assert result.errors[0].exception_class is DeserializationError
            assert "is no longer there" in result.errors[0].traceback
        assert performed(tasks.double, 4).return_value == 8

    def test_1C_28_it_is_not_tried_again_and_frees_its_limit(self):
        from packhorse import limit

        order = Order.objects.create()
        one_at_a_time = tasks.pay.using(limit=limit("orders"))
        with transaction.atomic():
            first, second = one_at_a_time.enqueue(order), one_at_a_time.enqueue(Order.objects.create(number=3))
            order.delete()
        assert (ended(first).status, ended(second).return_value) == (Status.FAILED, 3)

    def test_a_missing_row_is_discarded_where_the_task_says_so(self):
        order = Order.objects.create()
        of_the_job = tasks.pay.using(discard_missing=True)
        with transaction.atomic():
            results = [tasks.pay_if_there.enqueue(order), of_the_job.enqueue(order)]
            order.delete()
        look = application().looking.job
        wait_until(lambda: not any(look(result.job._raw_id) for result in results), "the jobs to be discarded")

    def test_a_bad_payload(self):
        app = application()
        [strange] = app.write([], lambda: [tasks.double.later(1).new_job()._replace(payload=b"nonsense")])
        found = app.job(str(uuid.UUID(bytes=strange)))
        wait_until(lambda: found.state == JobState.FAILED)
        failure = found.look().failure
        assert failure is not None
        assert failure.kind is FailureKind.UNDECODABLE
        assert performed(tasks.double, 4).return_value == 8


class Size(TextChoices):
    SMALL = "s"


class Count(IntegerChoices):
    ONE = 1


class Encoding(TestCase):
    def arguments(self, value: Any) -> Any:
        return tasks.anything.enqueue(value).args[0]

    def test_lazy_texts_are_what_they_are_now(self):
        with override("de"):
            assert self.arguments(gettext_lazy("Yes")) == "Ja"
        assert type(self.arguments(gettext_lazy("Yes"))) is str

    def test_texts_and_numbers_of_other_classes_are_plain(self):
        for value, plain in ((mark_safe("<b>"), "<b>"), (Size.SMALL, "s"), (Count.ONE, 1)):
            assert self.arguments(value) == plain
            assert type(self.arguments(value)) in (str, int)

    def test_the_user_of_a_request_is_lazy(self):
        user = User.objects.create(username="ann")
        lazy = SimpleLazyObject(lambda: user)
        assert self.arguments(lazy) == ModelReference("auth.user", user.pk, "default")
        with pytest.raises(InvalidArgument):
            self.arguments(SimpleLazyObject(AnonymousUser))

    def test_what_cannot_travel_says_what_to_do(self):
        refused = [
            (Order.objects.all(), "Pass primary keys"),
            (Order.objects, "name the model"),
            (ContentFile(b"x", name="x"), "Store the file"),
            (Order(), "has not been saved"),
            (object(), "cannot travel by itself"),
            (float("nan"), "not a finite number"),
            ({1: 2}, "Use text keys only"),
        ]
        for value, advice in refused:
            with pytest.raises(TypeError, match=advice):
                tasks.anything.enqueue(value)

    def test_sequences_show_as_lists(self):
        assert self.arguments((1, (2, 3))) == [1, [2, 3]]
