"""An instance that begins before it is needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import VulkanUnavailableError
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.instance_start import InstanceStart

if TYPE_CHECKING:
    from collections.abc import Iterator


class Instances:
    """Counts what is made and closed, in which thread; `error` is raised in place of the next one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, bool]] = []
        self.num_open = 0
        self.error: Exception | None = None
        create, close = Instance.create, Instance.close

        def counted(*, validation: bool = False) -> Instance:
            self.made.append((threading.current_thread().name, validation))
            error, self.error = self.error, None
            if error is not None:
                raise error
            self.num_open += 1
            return create()

        def closed(instance: Instance) -> None:
            self.num_open -= 1
            close(instance)

        patch.setattr(Instance, "create", counted)
        patch.setattr(Instance, "close", closed)


@pytest.fixture
def instances(monkeypatch: pytest.MonkeyPatch) -> Iterator[Instances]:
    found = Instances(monkeypatch)
    yield found
    assert found.num_open == 0


def test_who_takes_it_gets_what_the_thread_made(instances: Instances) -> None:
    with InstanceStart() as start:
        instance = start.take()
    assert instance.devices()
    assert instances.made == [("open Vulkan", False)]
    instance.close()


def test_who_comes_later_gets_one_of_its_own(instances: Instances) -> None:
    with InstanceStart() as start:
        first, second = start.take(), start.take()
    assert first is not second
    assert [name for name, _ in instances.made] == ["open Vulkan", threading.current_thread().name]
    first.close()
    second.close()


def test_who_wants_other_validation_gets_one_of_its_own(instances: Instances) -> None:
    with InstanceStart(validation=False) as start:
        instance = start.take(validation=True)
    assert [validation for _, validation in instances.made] == [False, True]
    instance.close()


def test_what_nobody_took_is_closed(instances: Instances) -> None:
    start = InstanceStart()
    start.close()
    start.close()
    assert len(instances.made) == 1


def test_an_error_is_raised_where_the_instance_is_wanted(instances: Instances) -> None:
    instances.error = VulkanUnavailableError("no driver")
    with InstanceStart() as start:
        with pytest.raises(VulkanUnavailableError, match="no driver"):
            start.take()
        start.take().close()  # perhaps there is one by now


def test_an_error_of_one_that_nobody_wants_is_not_raised(instances: Instances) -> None:
    instances.error = VulkanUnavailableError("no driver")
    InstanceStart().close()
