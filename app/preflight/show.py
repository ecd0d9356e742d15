"""A pre-flight report or a probe in, text for a person out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.core.advice import fill
from app.core.secrets import mask
from app.report import Paint, plain, remedy_lines, wrapped

if TYPE_CHECKING:
    from app.preflight import Item, Report
    from app.probe import Probe


def report_text(report: Report, paint: Paint = plain) -> str:
    """What was found, what will fail first."""
    return "\n".join(_report(report, paint)).rstrip() + "\n"


def _report(report: Report, paint: Paint) -> Iterator[str]:
    if report.engine is None:
        yield "This command line starts no engine that bringup knows; nothing was checked."
        return
    title = f"{report.engine} {report.version}" if report.version else f"{report.engine}, version not known"
    yield paint(f"{title}; checked against {report.checked}", "dim")
    for note in report.notes:
        yield paint(f"note: {mask(note)}", "dim")
    if not report.items:
        yield paint("Nothing found that would stop this start.", "good")
    for item in report.items:
        yield ""
        yield from _item(item, paint)


def _item(item: Item, paint: Paint) -> Iterator[str]:
    rule = item.verdict.rule
    kind = paint("will fail", "bad") if item.finding.fails else paint("may fail", "warn")
    yield f"{kind}  " + paint(rule.title, "bold") + paint(f"  ({rule.id})", "dim")
    yield from wrapped(mask(item.finding.text), "  > ")
    yield from wrapped(mask(fill(rule.cause, item.verdict.names)), "  ")
    for place, remedy in enumerate(item.remedies, 1):
        yield from ("  " + line for line in remedy_lines(place, dict(remedy), paint))


def probe_text(probe: Probe, paint: Paint = plain, flags: bool = False) -> str:
    """Versions and GPUs; with `flags` every flag of the engine's parser, one a line."""
    return "\n".join(_probe(probe, paint, flags)).rstrip() + "\n"


def _probe(probe: Probe, paint: Paint, flags: bool) -> Iterator[str]:
    yield paint(f"Python {probe.python_version}", "bold") + f"  {probe.python}"
    rows = [*sorted(probe.packages.items()), ("CUDA of torch", probe.torch_cuda), ("driver", probe.driver)]
    if probe.nvcc is not None:
        rows.append(("nvcc", f"{probe.nvcc[1] or '?'}  {probe.nvcc[0]}"))
    rows += [(f"GPU {gpu.index}", f"{gpu.name}  {gpu.sm or '?'}  {gpu.memory_mib or '?'} MiB") for gpu in probe.gpus]
    for name, value in rows:
        if value:
            yield f"  {name:<22} {value}"
    if not probe.engines:
        yield "No engine is installed there (sglang, vllm, tensorrt_llm)."
    if not probe.gpus:
        yield "No NVIDIA GPU answers (nvidia-smi)."
    for note in probe.notes:
        yield paint(f"note: {note}", "warn")
    parser = probe.parser
    if parser is None:
        return
    if parser.failure is not None:
        yield paint(f"{parser.engine} cannot be imported: {parser.failure}", "bad")
        yield from (f"  {line}" for line in parser.log.strip().splitlines()[-12:])
        return
    old = sum(bool(item.get("deprecated")) for item in parser.flags)
    yield f"{parser.engine} takes {len(parser.flags)} flags, {old} of them deprecated"
    for item in parser.flags if flags else ():
        values = (
            "" if item["arity"] in (0, "bool") else " {" + ",".join(item["choices"]) + "}" if item["choices"] else " …"
        )
        notes = ["deprecated"] if item.get("deprecated") else []
        notes += [f"use {item['use_instead']}"] if item.get("use_instead") else []
        notes += ["refused"] if item.get("refused") else []
        default = "" if item["default"] in (None, False) else f"  = {item['default']}"
        yield f"  {', '.join(item['spellings'])}{values}{default}" + (f"  ({', '.join(notes)})" if notes else "")
