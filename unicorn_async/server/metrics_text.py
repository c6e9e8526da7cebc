"""`/metrics`: counters in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Literal

from unicorn_async.server.health import is_ready, is_well, outages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unicorn_async.engine.types import EngineAPI, EngineStats
    from unicorn_async.server.archive import ArchiveState
    from unicorn_async.server.metrics import Histogram, Metrics
    from unicorn_async.server.model_state import ModelState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
PARTS = ("tokenizer", "long_texts", "chat_template", "grammars", "kv_disk", "store")  # of which there may be an outage
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_Sample = tuple["Mapping[str, str]", float]


class Exposition:
    """Text that grows metric by metric."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: Literal["counter", "gauge"], about: str, samples: Iterable[_Sample] | float) -> None:
        """Add a metric: one value, or one for each set of labels."""
        self._begin(name, kind, about)
        for labels, value in [({}, samples)] if isinstance(samples, int | float) else samples:
            self._sample(name, labels, value)

    def add_histogram(self, name: str, about: str, histogram: Histogram) -> None:
        """Add a histogram."""
        self._begin(name, "histogram", about)
        total = 0
        for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
            total += count
            self._sample(f"{name}_bucket", {"le": "+Inf" if bound is None else f"{bound:g}"}, total)
        self._sample(f"{name}_sum", {}, histogram.sum)
        self._sample(f"{name}_count", {}, total)

    def text(self) -> str:
        """Return all of it."""
        return "\n".join(self._lines) + "\n"

    def _begin(self, name: str, kind: str, about: str) -> None:
        self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        inner = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
        self._lines.append(f"{name}{{{inner}}} {value!r}" if inner else f"{name} {value!r}")


def metrics_text(metrics: Metrics, state: ModelState, store: ArchiveState) -> str:
    """Return everything that is counted, as of now."""
    out = Exposition()
    add_requests(out, metrics)
    answers = [({"outcome": outcome}, count) for outcome, count in sorted(metrics.answers.items())]
    out.add("unicorn_answers_total", "counter", "Answers that have ended, by how they did.", answers)
    embeddings = [({"outcome": outcome}, count) for outcome, count in sorted(metrics.embeddings.items())]
    out.add("unicorn_embedding_requests_total", "counter", "Requests for embeddings that have ended.", embeddings)
    out.add("unicorn_embedded_tokens_total", "counter", "Tokens of the inputs of those done.", metrics.embedded_tokens)
    out.add("unicorn_prompt_tokens_total", "counter", "Tokens of the prompts of ended answers.", metrics.prompt_tokens)
    out.add("unicorn_output_tokens_total", "counter", "Tokens of ended answers.", metrics.output_tokens)
    for name, about, histogram in (
        ("unicorn_time_to_first_token_seconds", "From the queue to an answer's first token.", metrics.first_token_s),
        ("unicorn_time_between_tokens_seconds", "From a token to the answer's next.", metrics.between_tokens_s),
        ("unicorn_answer_seconds", "From the queue to an answer's end.", metrics.answer_s),
    ):
        out.add_histogram(name, about, histogram)
    _add_state(out, state, store)
    if state.model is not None:
        _add_engine(out, state.model.engine)
    add_process(out)
    return out.text()


def _add_state(out: Exposition, state: ModelState, store: ArchiveState) -> None:
    """What `/health` says, as far as somebody may have to be called for it."""
    out.add("unicorn_ready", "gauge", "Whether requests are taken.", int(is_ready(state)))
    out.add("unicorn_well", "gauge", "Whether /health is 200.", int(is_well(state)))
    found = outages(state, store)
    parts = [({"part": part}, int(part in found)) for part in PARTS]
    out.add("unicorn_outage", "gauge", "Whether what requests need can't be had now.", parts)
    out.add("unicorn_store_failing", "gauge", "Whether the disk took no response.", int(store.error is not None))
    out.add("unicorn_unkept_responses_total", "counter", "Responses that the disk did not take.", store.num_unkept)
    about = "Files of responses that were deleted or replaced while they were in use."
    out.add("unicorn_store_lost_files_total", "counter", about, store.num_files_lost)


def _add_engine(out: Exposition, engine: EngineAPI) -> None:
    stats, device, attention = engine.stats(), engine.device, engine.attention
    info = {"model": engine.model_name, "device": device.name, "driver": f"{device.driver_name} {device.driver_info}"}
    out.add("unicorn_model_info", "gauge", "The model that is open, and what runs it.", [(info, 1)])
    out.add("unicorn_model_loaded_ratio", "gauge", "How far the model is loaded.", engine.progress.share)
    out.add("unicorn_max_context_tokens", "gauge", "Tokens that a prompt and its answer may have.", engine.max_context)
    out.add("unicorn_requests_running", "gauge", "Requests whose tokens are computed.", stats.running)
    out.add("unicorn_requests_waiting", "gauge", "Requests in the queue.", stats.waiting)
    blocks = {"used": stats.blocks_used, "allocated": stats.blocks_total, "planned": stats.blocks_planned}
    out.add("unicorn_kv_blocks", "gauge", "Blocks of the KV cache.", [({"kind": k}, v) for k, v in blocks.items()])
    out.add("unicorn_kv_cache_bytes", "gauge", "Size that the KV cache grows to.", attention.kv_cache_bytes)
    heaps = [
        ({"heap": heap.heap.value, "kind": kind}, value)
        for heap in engine.memory.heaps
        for kind, value in (("planned", heap.planned), ("allocated", heap.allocated), ("driver", heap.driver))
        if value is not None
    ]
    out.add("unicorn_memory_bytes", "gauge", "Memory of each kind that the model takes.", heaps)
    for name, about, value in (
        ("unicorn_engine_steps_total", "Steps since the model was opened.", stats.steps),
        ("unicorn_engine_generated_tokens_total", "Tokens sampled since then.", stats.tokens_generated),
        ("unicorn_engine_prefilled_tokens_total", "Tokens of prompts computed since then.", stats.tokens_prefilled),
        ("unicorn_engine_prompt_tokens_total", "Tokens of all prompts that were begun.", stats.prompt_tokens),
        ("unicorn_engine_cached_tokens_total", "Those computed for earlier prompts.", stats.prompt_tokens_found),
        ("unicorn_engine_proposed_tokens_total", "Tokens that were proposed to answers.", stats.proposed_tokens),
        ("unicorn_engine_accepted_tokens_total", "Those that were right.", stats.proposed_tokens_right),
        (
            "unicorn_engine_drafted_tokens_total",
            "Tokens that a draft model or a predictor proposed.",
            stats.drafted_tokens,
        ),
        ("unicorn_engine_accepted_drafts_total", "Those of them that were right.", stats.drafted_tokens_right),
        ("unicorn_engine_preemptions_total", "Requests that lost their places since then.", stats.preemptions),
        ("unicorn_engine_fair_preemptions_total", "Those for another client's share.", stats.fair_preemptions),
        ("unicorn_engine_bounded_steps_total", "Steps with less of a prompt, for answers.", stats.bounded_steps),
        (
            "unicorn_engine_host_seconds_total",
            "Time of the host's for steps.",
            stats.host_us_per_step * stats.steps / 1e6,
        ),
    ):
        out.add(name, "counter", about, value)
    times = [({"device": device.name, "part": "model"}, stats.device_s)]
    if stats.attention is not None:
        far = {"device": attention.device, "part": "attention"}
        times = [(times[0][0], stats.attention.near_s), (far, stats.attention.far_s)]
        about = "Times that the device which attends began anew after a fault."
        out.add("unicorn_attention_recoveries_total", "counter", about, stats.attention.recoveries)
    _add_kv_store(out, stats)
    about = "Time that each device worked at steps; by unicorn_engine_steps_total it is the time of a step."
    out.add("unicorn_device_seconds_total", "counter", about, times)


def _add_kv_store(out: Exposition, stats: EngineStats) -> None:
    store = stats.kv_store
    if store is None:
        return
    blocks = {
        "stored": store.stored_blocks,
        "restored": store.restored_blocks,
        "written": store.written_blocks,
        "read": store.read_blocks,
    }
    about = "Blocks copied to the host and back to the device, written to the disk and read from it."
    out.add("unicorn_kv_store_blocks_total", "counter", about, [({"way": way}, n) for way, n in blocks.items()])
    about = "Writes, reads and allocations of kept blocks that failed."
    out.add("unicorn_kv_store_failures_total", "counter", about, store.failures)
    sizes = [({"place": "host"}, store.host_bytes), ({"place": "disk"}, store.disk_bytes)]
    out.add("unicorn_kv_store_bytes", "gauge", "Size of what blocks are kept in.", sizes)


def add_requests(out: Exposition, metrics: Metrics) -> None:
    """What comes over HTTP and websockets."""
    requests = [
        ({"method": method, "route": route, "status": str(status)}, count)
        for (method, route, status), count in sorted(metrics.requests.items())
    ]
    out.add("unicorn_http_requests_total", "counter", "HTTP requests that were answered.", requests)
    out.add("unicorn_websockets", "gauge", "Websockets that are open.", metrics.websockets)


def add_process(out: Exposition) -> None:
    """What Prometheus' own clients tell of a process, by the names that they have there."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    out.add("process_cpu_seconds_total", "counter", "Time on the CPU, in seconds.", cpu_s)
    started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + _started_s()
    out.add("process_start_time_seconds", "gauge", "Start, in seconds since 1970.", round(started, 2))
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[1])
    out.add("process_resident_memory_bytes", "gauge", "Resident memory.", pages * _PAGE_BYTES)
    out.add("process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd")) - 1)
    out.add("process_max_fds", "gauge", "Most of them.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _started_s() -> float:
    """When this process was started, in seconds since the machine was: field 22 of proc_pid_stat(5)."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
