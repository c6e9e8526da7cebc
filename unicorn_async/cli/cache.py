"""`unicorn cache`: weights as the device has them, made once and kept, tokenizers, and blocks of KV caches."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from unicorn_async.cache.verify import Verifier
from unicorn_async.cli.amounts import size
from unicorn_async.cli.options import byte_size
from unicorn_async.engine.user_folders import kept_blocks_directory, kept_tokenizers, weight_cache_folder
from unicorn_async.errors import ConfigError
from unicorn_async.kv_store.disk_folder import idle_files, prune_idle
from unicorn_async.ops.host_checksum import HostChecksum
from unicorn_async.public_text import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from unicorn_async.cache.folder import CacheFolder, StoredEntry
    from unicorn_async.cache.verify import Verification

_SHOWN_DIGITS = 12  # of an entry's name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    shown = actions.add_parser("list", help="list the entries")
    shown.add_argument("--json", action="store_true", help="print a JSON array with everything")
    prune = actions.add_parser("prune", help="remove damaged and outdated entries, and more if asked to")
    how = prune.add_mutually_exclusive_group()
    how.add_argument("--to", type=byte_size, metavar="SIZE", help="those unused for longest too, down to this size")
    how.add_argument("--all", action="store_true", help="all of them")
    verify = actions.add_parser("verify", help="read entries, and what they were made from, whole")
    verify.add_argument("entry", nargs="?", metavar="ENTRY", help="begin of its name, or its model (default: all)")
    actions.add_parser("path", help="print the folder")


def run(options: argparse.Namespace) -> int:
    """Do what was asked for; verifying ends with 1 if something differs."""
    folder = weight_cache_folder()
    if options.action == "path":
        print(folder.path)
        return 0
    if options.action == "verify":
        return _verify(_chosen(folder.entries(), options.entry))
    if options.action == "prune":
        return _prune(folder, to=0 if options.all else options.to)
    stored = folder.entries()
    if options.json:
        print(json.dumps([_as_json(one) for one in stored], indent=2))
        return 0
    kept = kept_tokenizers().files()
    tokenizers = [f"and {len(kept)} tokenizers, {size(sum(nbytes for _, nbytes in kept))}"] if kept else []
    print("\n".join([*_table(stored), *tokenizers, *_blocks()]))
    return 0


def _blocks() -> list[str]:
    """Say what there is of KV caches, but for those of servers that run."""
    root = kept_blocks_directory()
    sizes = [nbytes for _, _, nbytes in idle_files(root)] if root.is_dir() else []
    return [f"and {len(sizes)} blocks of KV caches, {size(sum(sizes))}"] if sizes else []


def _table(stored: Sequence[StoredEntry]) -> list[str]:
    if not stored:
        return ["no entries"]
    rows = [("entry", "model", "scheme", "size", "last used", "made from"), *(_row(one) for one in stored)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, f"{size(sum(one.nbytes for one in stored))} in all"]


def _row(stored: StoredEntry) -> tuple[str, ...]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(stored.last_used))
    name, entry = stored.key[:_SHOWN_DIGITS], stored.entry
    if entry is None:
        return name, "", "", size(stored.nbytes), used, f"damaged: {printable(stored.damage)}"
    scheme = entry.scheme + (" + adapters" if entry.lora_digest else "")
    source = entry.source_path if stored.is_usable else f"{entry.source_path} (outdated layout)"
    return name, printable(entry.model), printable(scheme), size(stored.nbytes), used, printable(source)


def _as_json(stored: StoredEntry) -> dict[str, object]:
    entry = stored.entry
    common: dict[str, object] = {
        "entry": stored.key,
        "path": str(stored.path),
        "bytes": stored.nbytes,
        "last_used": stored.last_used,
        "usable": stored.is_usable,
        "damage": stored.damage,
    }
    if entry is None:
        return common
    return common | {
        "model": entry.model,
        "scheme": entry.scheme,
        "lora_digest": entry.lora_digest,
        "device": entry.device,
        "created": entry.created,
        "layout_version": entry.layout_version,
        "tensors": len(entry.tensors),
        "source": entry.source_path,
    }


def _prune(folder: CacheFolder, *, to: int | None) -> int:
    """Remove; `to` is the size that may stay, None for all that is of use."""
    folder.clean()
    stored = folder.entries()
    removed = [one for one in stored if not one.is_usable or to == 0]
    for one in removed:
        folder.remove(one.key)
    left = [one for one in stored if one not in removed]
    if to:
        removed += folder.prune(sum(one.nbytes for one in left) - to, left)
    print(f"removed {len(removed)} of {len(stored)} entries, {size(sum(one.nbytes for one in removed))}")
    if to == 0:
        print(f"removed {kept_tokenizers().prune(most=0)} tokenizers")
        count, nbytes = prune_idle(kept_blocks_directory())
        if count:
            print(f"removed {count} blocks of KV caches, {size(nbytes)}")
    return 0


def _verify(stored: Sequence[StoredEntry]) -> int:
    verifier, status = Verifier(HostChecksum), 0
    for one in stored:
        started = time.monotonic()
        found = verifier.verify(one)
        name = f"{one.key[:_SHOWN_DIGITS]} {printable(one.entry.model) if one.entry else ''}".strip()
        for difference in found.differences:
            print(f"{name}: {printable(difference)}", file=sys.stderr)
        if found.differences:
            status = 1
            continue
        print(f"{name}: {_outcome(found)}, {size(found.hashed_bytes)} read in {time.monotonic() - started:.1f} s")
    return status


def _outcome(found: Verification) -> str:
    """What is known when nothing differs: of sources without a hash from then, less than that they are the same."""
    if found.first_hashed:
        count = len(found.first_hashed)
        files = "a source" if count == 1 else f"{count} sources"
        return f"tensors as they were made; {files} of the right size and time, hashed for the first time"
    if found.hashed_before:
        return "tensors as they were made, sources as they were when first verified"
    return "as it was made"


def _chosen(stored: Sequence[StoredEntry], wanted: str | None) -> Sequence[StoredEntry]:
    if wanted is None:
        return stored
    found = [one for one in stored if one.key.startswith(wanted) or (one.entry and one.entry.model == wanted)]
    if not found:
        raise ConfigError(f"cache: no entry {wanted!r}; it has {', '.join(one.key for one in stored) or 'none'}")
    return found
