"""The Vulkan instance: the list of devices, and the validation layers' messages."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from unicorn_async.errors import MissingFeatureError, VulkanUnavailableError
from unicorn_async.gpu.binding import Api, InstanceHandle, check, load_api
from unicorn_async.gpu.choice import why_no_gpu
from unicorn_async.gpu.driver_libraries import keep_loaded
from unicorn_async.gpu.host import HostGraphics
from unicorn_async.gpu.physical import MIN_API_VERSION, PhysicalDevice

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from unicorn_async.gpu.binding import CData
    from unicorn_async.gpu.device_info import DeviceInfo

_VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
_SEVERITY_WARNING, _SEVERITY_ERROR = 0x100, 0x1000
_TYPE_VALIDATION = 0x2


class Instance:
    """A VkInstance and its physical devices; close it after every Device that was opened from it.

    `validation_messages` collects what the validation layers say, in the order of arrival.
    """

    def __init__(self, api: Api, handle: InstanceHandle, *, validation: bool) -> None:
        self.api = api
        self.validation_messages: list[str] = []
        self._handle: InstanceHandle | None = handle
        self._messenger: CData = None
        if validation:
            self._listen(handle)
        handles = api.enumerate("vkEnumeratePhysicalDevices", "VkPhysicalDevice", handle)
        self._physical = tuple(PhysicalDevice(api, handle, item, index) for index, item in enumerate(handles))

    @classmethod
    def create(cls, *, validation: bool = False) -> Instance:
        """Load Vulkan and ask it for its devices.

        Raises:
            VulkanUnavailableError: there is no driver, no loader, or it is older than Vulkan 1.3.
            MissingFeatureError: `validation`, and the layers are not installed.
        """
        api = load_api()
        version = api.ffi.new("uint32_t *")
        check(api.lib.vkEnumerateInstanceVersion(version), "vkEnumerateInstanceVersion")
        found = (version[0] >> 22 & 0x7F, version[0] >> 12 & 0x3FF, version[0] & 0xFFF)
        if found < MIN_API_VERSION:
            raise VulkanUnavailableError(f"the Vulkan loader: expected at least 1.3, got {'.'.join(map(str, found))}")
        layers = api.enumerate("vkEnumerateInstanceLayerProperties", "VkLayerProperties")
        if validation and _VALIDATION_LAYER not in {api.text(layer.layerName) for layer in layers}:
            raise MissingFeatureError(f"{_VALIDATION_LAYER}: not installed (Debian: vulkan-validationlayers)")
        application = api.struct(
            "VkApplicationInfo", pApplicationName="unicorn-async", apiVersion=(1 << 22) | (3 << 12)
        )
        info = api.struct(
            "VkInstanceCreateInfo",
            pApplicationInfo=application,
            enabledLayerCount=int(validation),
            ppEnabledLayerNames=api.strings([_VALIDATION_LAYER]),
            enabledExtensionCount=int(validation),
            ppEnabledExtensionNames=api.strings(["VK_EXT_debug_utils"]),
        )
        try:
            handle = api.create("vkCreateInstance", "vkCreateInstance", "VkInstance", info, api.null)
        except VulkanUnavailableError as exc:
            raise VulkanUnavailableError(
                f"no usable Vulkan driver (Debian and Ubuntu: mesa-vulkan-drivers){why_no_gpu(HostGraphics())}; {exc}"
            ) from exc
        return cls(api, handle, validation=validation)

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Return what each physical device is, in the driver loader's order; memory budgets are those of `create`."""
        return tuple(device.info for device in self._physical)

    def physical(self, info: DeviceInfo) -> PhysicalDevice:
        """Return the physical device that `info` describes."""
        return self._physical[info.index]

    def close(self) -> None:
        """Destroy the instance; every device of it must be closed."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if self._messenger is not None:
            self.api.instance_function(handle, "vkDestroyDebugUtilsMessengerEXT")(
                handle, self._messenger, self.api.null
            )
        keep_loaded()
        self.api.lib.vkDestroyInstance(handle, self.api.null)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1)

    def _listen(self, handle: InstanceHandle) -> None:
        api = self.api

        def receive(severity: int, kinds: int, data: CData, user: CData) -> int:
            self.validation_messages.append(api.text(data.pMessage))
            return 0

        self._callback = api.ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", receive)
        info = api.struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=_SEVERITY_WARNING | _SEVERITY_ERROR,
            messageType=_TYPE_VALIDATION,
            pfnUserCallback=self._callback,
        )
        out = api.ffi.new("VkDebugUtilsMessengerEXT *")
        create = api.instance_function(handle, "vkCreateDebugUtilsMessengerEXT")
        check(create(handle, info, api.null, out), "vkCreateDebugUtilsMessengerEXT")
        self._messenger = out[0]
