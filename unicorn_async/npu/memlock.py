"""How much memory a process has to be allowed to lock: everything that the NPU works on."""

LEAST_BYTES = 64 << 20  # the first open of the device locks so much
RAISE_HINT = (
    "`sudo prlimit --pid $$ --memlock=unlimited` in this shell, for now; for good, `sudo mkdir -p"
    " /etc/systemd/system/user@.service.d && printf '[Service]\\nLimitMEMLOCK=infinity\\n' | sudo tee"
    " /etc/systemd/system/user@.service.d/memlock.conf && sudo systemctl daemon-reload`, then log in again from the"
    " start (limits.d does not reach terminals under user@.service), or LimitMEMLOCK in a service's own unit"
)
