"""What is done in the background."""

import random

from packhorse import Retry
from packhorse.django import TaskContext, recurring, task


@task(takes_context=True, retries=3, backoff=0.1)
def bake(context: TaskContext, bread: str, loaves: int) -> str:
    if context.attempt == 1 and random.random() < 0.3:
        raise Retry("the oven is cold", after=0.1)
    for loaf in range(loaves):
        context.packhorse.progress(loaf + 1, loaves, f"loaf {loaf + 1}")
    return f"{loaves} × {bread}, in attempt {context.attempt}"


@recurring("every 5s", key="sweep")
@task
def sweep() -> str:
    return "the floor is clean"
