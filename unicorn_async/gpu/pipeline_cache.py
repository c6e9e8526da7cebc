"""The driver's compiled pipelines on disk, one file per device and driver."""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.gpu.binding import PipelineCacheHandle, check

if TYPE_CHECKING:
    from unicorn_async.gpu.device_context import DeviceContext

_log = logging.getLogger(__name__)
_MAGIC = b"unicorn pipelines 1\n"
_HEADER = struct.Struct("<IIII16s")  # VkPipelineCacheHeaderVersionOne


class PipelineCache:
    """A VkPipelineCache that starts from the file in `folder`, if there is a sound one, and can be written back.

    The file holds a checksum before the driver's data, because drivers trust what they are given.
    """

    def __init__(self, device: DeviceContext, folder: Path | None) -> None:
        self._device = device
        info = device.info
        name = f"pipelines-{info.vendor_id:04x}-{info.device_id:04x}-{info.device_uuid}-{info.driver_version:08x}.bin"
        self.path = None if folder is None else folder / name
        data = self._read()
        api = device.api
        create = api.struct(
            "VkPipelineCacheCreateInfo",
            initialDataSize=len(data),
            pInitialData=api.ffi.new("char[]", data) if data else api.null,
        )
        self.handle = PipelineCacheHandle(
            api.create(
                "vkCreatePipelineCache", "vkCreatePipelineCache", "VkPipelineCache", device.handle, create, api.null
            )
        )
        self.loaded_bytes = len(data)
        self._closed = False

    def save(self) -> bool:
        """Write the cache to its file in one step; a folder that can't be written is a warning in the log."""
        if self.path is None:
            return False
        data = self._data()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, partial = tempfile.mkstemp(prefix=self.path.name, suffix=".part", dir=self.path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(data).digest() + data)
                Path(partial).replace(self.path)
            except BaseException:
                Path(partial).unlink(missing_ok=True)
                raise
        except OSError as exc:
            _log.warning("pipeline cache %s: not written: %s", self.path, exc)
            return False
        return True

    def close(self) -> None:
        """Destroy the cache; what was not saved is lost."""
        if not self._closed:
            self._closed = True
            self._device.api.lib.vkDestroyPipelineCache(self._device.handle, self.handle, self._device.api.null)

    def _data(self) -> bytes:
        api, device, size = self._device.api, self._device.handle, self._device.api.ffi.new("size_t *")
        check(api.lib.vkGetPipelineCacheData(device, self.handle, size, api.null), "vkGetPipelineCacheData")
        data = api.ffi.new("char[]", max(size[0], 1))
        check(api.lib.vkGetPipelineCacheData(device, self.handle, size, data), "vkGetPipelineCacheData")
        return bytes(api.ffi.buffer(data, size[0]))

    def _read(self) -> bytes:
        if self.path is None:
            return b""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as exc:
            _log.warning("pipeline cache %s: not read: %s", self.path, exc)
            return b""
        start = len(_MAGIC) + 32
        data = content[start:]
        if not content.startswith(_MAGIC) or hashlib.sha256(data).digest() != content[len(_MAGIC) : start]:
            _log.warning("pipeline cache %s: damaged, ignored", self.path)
            return b""
        if not self._is_ours(data):
            _log.warning("pipeline cache %s: of another device or driver, ignored", self.path)
            return b""
        return data

    def _is_ours(self, data: bytes) -> bool:
        if len(data) < _HEADER.size:
            return False
        length, version, vendor, device, uuid = _HEADER.unpack_from(data)
        info = self._device.info
        ours = (info.vendor_id, info.device_id, self._device.physical.pipeline_cache_uuid)
        return bool(length >= _HEADER.size and version == 1 and (vendor, device, uuid) == ours)
