"""What engines leave behind once they are closed: nothing, or the test fails."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unicorn_async.gpu.device import Device

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    import pytest


@contextmanager
def no_leftovers(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test after which a device was left open, or closed before what lives on it, or a thread goes on."""
    closed: list[tuple[Counter[str], int, int]] = []
    opened: list[Device] = []
    close, init = Device.close, Device.__init__

    def watched_init(device: Device, *args: object) -> None:
        init(device, *args)  # type: ignore[arg-type]
        opened.append(device)

    def watched_close(device: Device) -> None:
        device.memory.collect()  # what waited for a step that is done by now
        closed.append((device.live_objects(), device.memory.num_buffers, sum(device.memory.used_bytes)))
        close(device)

    before = set(threading.enumerate())  # the device that tests share has threads too
    patch.setattr(Device, "__init__", watched_init)
    patch.setattr(Device, "close", watched_close)
    yield
    assert len(closed) == len(opened)
    for device, (objects, num_buffers, used_bytes) in zip(opened, closed, strict=True):
        num_queues = len({device.compute, device.transfer})
        assert dict(objects) == {"Timeline": num_queues}
        assert (num_buffers, used_bytes) == (0, 0)
    threads = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("unicorn")]
    for thread in threads:
        thread.join(120)
    assert not [thread.name for thread in threads if thread.is_alive()]
    gc.collect()  # what was not closed warns, and a warning fails the test
