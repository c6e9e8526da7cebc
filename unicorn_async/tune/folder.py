"""The folder that keeps tables of measured choices, one a device and driver."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.errors import TuningError
from unicorn_async.tune.table import MAX_CHOICES, parse_table

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.tune.table import TuningTable

MAX_TABLE_BYTES = 1 << 20


class TuningFolder:
    """Tables in a folder that need not exist yet; all methods block on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def path_of(self, info: DeviceInfo) -> Path:
        """Return where the table of a device and its driver is, or would be."""
        name = f"{info.vendor_id:04x}-{info.device_id:04x}-{info.device_uuid}-{info.driver_version:08x}.json"
        return self.path / name

    def paths(self) -> tuple[Path, ...]:
        """Return where the tables of all devices and drivers are."""
        return tuple(sorted(self.path.glob("*.json")))

    def find(self, info: DeviceInfo) -> TuningTable | None:
        """Return the table of a device and its driver, None where there is none; raises as `read_table`."""
        path = self.path_of(info)
        return read_table(path) if os.path.lexists(path) else None

    def write(self, info: DeviceInfo, table: TuningTable) -> Path:
        """Put a table in the place of the one that is there, in one step; returns where.

        Raises:
            TuningError: that is not possible, or there are more choices than any table has.
        """
        path, data = self.path_of(info), table.to_json()
        count = max(len(table.choices), len(table.forms))
        if count > MAX_CHOICES or len(data) > MAX_TABLE_BYTES:
            raise TuningError(f"{path}: not written: {count} choices are too many; `unicorn tune --clear` removes them")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor, partial = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=self.path)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                Path(partial).replace(path)
            except BaseException:
                Path(partial).unlink(missing_ok=True)
                raise
        except OSError as exc:
            raise TuningError(f"{path}: not written: {exc.strerror or exc}") from exc
        return path

    def clear(self) -> int:
        """Remove all tables, and what writers that died have left; returns how many tables there were.

        Raises:
            TuningError: that is not possible.
        """
        tables = self.paths()
        for path in (*tables, *self.path.glob("*.part")):
            try:
                path.unlink(missing_ok=True)
            except OSError as exc:
                raise TuningError(f"{path}: not removed: {exc.strerror or exc}") from exc
        return len(tables)


def read_table(path: Path) -> TuningTable:
    """Read a table and check its form.

    Raises:
        TuningError: the file can't be read, holds no table, or is larger than any.
    """
    try:
        # Without blocking: a pipe would wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TuningError(f"{path}: is no regular file")
            data = file.read(MAX_TABLE_BYTES + 1)
    except OSError as exc:
        raise TuningError(f"{path}: not read: {exc.strerror or exc}") from exc
    if len(data) > MAX_TABLE_BYTES:
        raise TuningError(f"{path}: larger than any table, which has {MAX_TABLE_BYTES} bytes at most")
    return parse_table(data, str(path))
