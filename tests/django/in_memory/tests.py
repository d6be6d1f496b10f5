"""Run by Django's test runner; see tests/django/test_testing.py."""

from django.test import TestCase, TransactionTestCase

from packhorse.django.testing import adrain, drain
from tests.django.shop import tasks
from tests.django.shop.models import Order


class Draining(TestCase):
    async def test_in_a_transaction(self):
        order = await Order.objects.acreate(number=3)
        await tasks.apay.aenqueue(order)
        await tasks.pay.aenqueue(order)
        assert [it.return_value for it in await adrain(raise_errors=True)] == [3, 3]


class Committing(TransactionTestCase):
    def test_outside_of_one(self):
        order = Order.objects.create(number=3)
        tasks.apay.enqueue(order)
        tasks.pay.enqueue(order)
        assert [it.return_value for it in drain(raise_errors=True)] == [3, 3]
        order.refresh_from_db()
        assert order.paid
