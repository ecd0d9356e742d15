"""A log as written in, the same log as tools deliver it and people copy it out: one function a shape."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

START = datetime(2026, 2, 20, 10, 11, 12, 123456, UTC)
NEW_RECORD = re.compile(r"\[\d{4}-\d\d-\d\d |\((?:\w+) pid=|(?:INFO|WARNING|ERROR)[: ]")

Shape = Callable[[bytes], bytes]
SHAPES: dict[str, Shape] = {}


def shape(made: Shape) -> Shape:
    SHAPES[made.__name__] = made
    return made


def lines(log: bytes) -> list[str]:
    """The log's lines; of a redrawn bar what was drawn last, as a copy or a collector shows it."""
    text = log.decode("utf-8", "replace").replace("\r\n", "\n")
    return [line.rpartition("\r")[2] for line in text.rstrip("\n").split("\n")]


def joined(rows: Iterable[str], newline: str = "\n") -> bytes:
    return (newline.join(rows) + newline).encode()


def when(number: int) -> datetime:
    return START + timedelta(milliseconds=137 * number)


def iso(number: int, digits: int = 6) -> str:
    return when(number).strftime("%Y-%m-%dT%H:%M:%S.%f")[: 20 + digits] + "Z"


def before(prefix: Callable[[int], str]) -> Shape:
    return lambda log: joined(prefix(number) + line for number, line in enumerate(lines(log)))


def entries(log: bytes) -> Iterator[list[str]]:
    """The records: a line that begins one and whatever follows."""
    entry: list[str] = []
    for line in lines(log):
        if NEW_RECORD.match(line) and entry:
            yield entry
            entry = []
        entry.append(line)
    if entry:
        yield entry


# What stands before every line

for name, prefix in {
    "docker_compose": lambda n: "sglang-server-1  | ",
    "docker_compose_old": lambda n: "\x1b[36msglang_1  |\x1b[0m ",
    "docker_compose_timestamps": lambda n: f"sglang-1  | {iso(n)} ",
    "docker_timestamps": lambda n: f"{iso(n)[:-1]}789Z ",
    "cri": lambda n: f"{iso(n)} stderr F ",
    "kubectl_prefix": lambda n: "[pod/glm5-7f9c4d6b5-abcde/server] ",
    "kubectl_prefix_timestamps": lambda n: f"[pod/glm5-7f9c4d6b5-abcde/server] {iso(n)[:-1]}789Z ",
    "stern": lambda n: "glm5-7f9c4d6b5-abcde server ",
    "journalctl": lambda n: f"Feb 20 10:11:{12 + n % 40:02d} gpu01 sglang[4711]: ",
    "journalctl_iso": lambda n: f"{iso(n)[:19]}+0100 gpu01 sglang[4711]: ",
    "syslog_rfc3339": lambda n: f"{iso(n)[:-1]}+01:00 gpu01 sglang[4711]: ",
    "journalctl_precise": lambda n: f"Feb 20 10:11:{12 + n % 40:02d}.123456 gpu01 sglang[4711]: ",
    "ts": lambda n: f"Feb 20 10:11:{12 + n % 40:02d} ",
    "ts_iso": lambda n: f"{iso(n)[:19]} ",
    "ts_seconds": lambda n: f"{n // 3600:02d}:{n // 60 % 60:02d}:{n % 60:02d} ",
    "ts_precise": lambda n: f"{when(n):%Y-%m-%d %H:%M:%S}.{n:06d} ",
    "srun_label": lambda n: "0: ",
    "srun_label_padded": lambda n: " 3: ",
    "mpirun_tag": lambda n: "[1,0]<stderr>:",
    "mpirun_tag_4": lambda n: "[1,0]<stdout>: ",
    "mpirun_stamp": lambda n: f"Fri Feb 20 10:11:{12 + n % 40:02d} 2026[1,3]<stderr>:",
    "pdsh": lambda n: "gpu-17: ",
    "clush": lambda n: "node042.cluster.local: ",
    "torchrun_tee": lambda n: "[default3]:",
    "torchrun_rank": lambda n: "[rank3]: ",
    "ray": lambda n: "(EngineWorker pid=4711) ",
    "ray_ip": lambda n: "(SGLangActor pid=4711, ip=10.0.0.17) ",
    "ray_colour": lambda n: "\x1b[36m(RayWorkerWrapper pid=4711, ip=10.0.0.17)\x1b[0m ",
    "github_actions": lambda n: f"{iso(n)[:-1]}7Z ",
    "github_actions_raw": lambda n: f"build\tRun server\t{iso(n)[:-1]}7Z ",
    "gitlab_ci": lambda n: f"{iso(n)} 01E ",
    "gitlab_ci_plain": lambda n: f"{iso(n)} 00O ",
    "cloudwatch_tail": lambda n: f"{iso(n)[:19]}+00:00 ecs/server/0a1b2c3d4e5f ",
    "supervisord": lambda n: "sglang:sglang_00 | ",
    "foreman": lambda n: f"10:11:{12 + n % 40:02d} server.1 | ",
    "heroku": lambda n: f"{iso(n)} app[web.1]: ",
    "lightning": lambda n: f"[{iso(n)}] ",
    "quoted_mail": lambda n: "> ",
    "quoted_twice": lambda n: "> > ",
    "indented": lambda n: "    ",
    "indented_tab": lambda n: "\t",
    "numbered_bar": lambda n: f"{n + 1:>6} | ",
    "numbered_colon": lambda n: f"{n + 1}: ",
    "numbered_tab": lambda n: f"{n + 1:>6}\t",
    "numbered_cat": lambda n: f"{n + 1:>6}  ",
    "numbered_box": lambda n: f"{n + 1:>4} │ ",
    "diff_plus": lambda n: "+",
    "grep_file": lambda n: f"logs/server.log:{n + 1}:",
    "windows_time": lambda n: f"[10:11:{12 + n % 40:02d}.123] ",
}.items():  # fmt: skip
    SHAPES[name] = before(prefix)


# One JSON object a line, or an array of them


def objects(make: Callable[[int, str], object]) -> Shape:
    return lambda log: joined(json.dumps(make(number, line)) for number, line in enumerate(lines(log)))


for name, make in {
    "docker_json": lambda n, line: {"log": line + "\n", "stream": "stderr", "time": iso(n)},
    "journald_json": lambda n, line: {"__REALTIME_TIMESTAMP": str(1771582272000000 + n), "MESSAGE": line, "_PID": "4711",
                                      "_COMM": "python3", "PRIORITY": "6"},
    "journald_json_bytes": lambda n, line: {"PRIORITY": "6", "MESSAGE": list(line.encode()) if "\x1b" in line or n % 3 == 0
                                            else line},
    "gcp_text": lambda n, line: {"insertId": f"a{n}", "severity": "ERROR", "textPayload": line, "timestamp": iso(n)},
    "gcp_json": lambda n, line: {"insertId": f"a{n}", "jsonPayload": {"message": line, "pid": 17}, "timestamp": iso(n)},
    "cloudwatch_json": lambda n, line: {"timestamp": 1771582272000 + n, "message": line, "ingestionTime": 1771582273000},
    "cloudwatch_insights": lambda n, line: {"@timestamp": iso(n), "@message": line, "@ptr": f"x{n}"},
    "structured_msg": lambda n, line: {"level": "info", "ts": iso(n), "msg": line},
    "datadog": lambda n, line: {"id": f"A{n}", "content": {"timestamp": iso(n), "host": "gpu", "message": line}},
    "elastic_hit": lambda n, line: {"_index": "logs", "_id": f"{n}", "_source": {"@timestamp": iso(n), "message": line}},
    "fluentbit": lambda n, line: {"date": 1771582272.1 + n, "kubernetes": {"pod_name": "glm5"}, "log": line},
    "loki_jsonl": lambda n, line: {"labels": {"pod": "glm5"}, "line": line, "timestamp": iso(n)},
    "azure": lambda n, line: {"TimeGenerated": iso(n), "LogMessage": line, "PodName": "glm5"},
}.items():  # fmt: skip
    SHAPES[name] = objects(make)


@shape
def json_array(log: bytes) -> bytes:
    """Exported as one array, indented."""
    rows = [{"timestamp": iso(n), "textPayload": line} for n, line in enumerate(lines(log))]
    return json.dumps(rows, indent=2).encode() + b"\n"


@shape
def json_array_one_line(log: bytes) -> bytes:
    return json.dumps([{"timestamp": iso(n), "message": line} for n, line in enumerate(lines(log))]).encode()


@shape
def cloudwatch_events(log: bytes) -> bytes:
    """`aws logs get-log-events`."""
    rows = [{"timestamp": 1771582272000 + n, "message": line, "ingestionTime": 1} for n, line in enumerate(lines(log))]
    return json.dumps({"events": rows, "nextForwardToken": "f/38"}, indent=4).encode()


@shape
def journald_verbose(log: bytes) -> bytes:
    out = []
    for n, line in enumerate(lines(log)):
        out.append(f"Fri 2026-02-20 10:11:{12 + n % 40:02d}.123456 CET [s=5f0a;i=12{n};b=9c;m=7e;t=64;x=1]")
        out += ["    _TRANSPORT=stdout", "    _UID=1000", f"    MESSAGE={line}", "    _PID=4711"]
    return joined(out)


@shape
def csv_export(log: bytes) -> bytes:
    rows = ['"{}","{}"'.format(iso(n), line.replace('"', '""')) for n, line in enumerate(lines(log))]
    return joined(["Date,Message", *rows])


# How text is encoded


@shape
def crlf(log: bytes) -> bytes:
    return joined(lines(log), "\r\n")


@shape
def cr_only(log: bytes) -> bytes:
    return joined(lines(log), "\r")


@shape
def utf8_bom(log: bytes) -> bytes:
    return b"\xef\xbb\xbf" + joined(lines(log))


@shape
def utf16_le(log: bytes) -> bytes:
    return joined(lines(log), "\r\n").decode().encode("utf-16")


@shape
def utf16_be(log: bytes) -> bytes:
    return b"\xfe\xff" + joined(lines(log), "\r\n").decode().encode("utf-16-be")


@shape
def utf16_le_no_bom(log: bytes) -> bytes:
    return joined(lines(log), "\r\n").decode().encode("utf-16-le")


@shape
def html_escaped(log: bytes) -> bytes:
    return joined(html.escape(line) for line in lines(log))


@shape
def html_escaped_39(log: bytes) -> bytes:
    return joined(html.escape(line).replace("&#x27;", "&#39;").replace(" ", "&nbsp;") for line in lines(log))


def coloured(escape: str) -> Shape:
    """Colours whose escape sign was lost or spelt out."""

    def made(log: bytes) -> bytes:
        out = []
        for n, line in enumerate(lines(log)):
            if line.startswith("  File "):
                line = re.sub(r'(".+?"|(?<=line )\d+)', lambda found: f"{escape}[35m{found[0]}{escape}[0m", line)
            out.append(f"{escape}[{31 + n % 6}m{line}{escape}[0m" if line else line)
        return joined(out)

    return made


SHAPES |= {
    "ansi": coloured("\x1b"),
    "ansi_bold": coloured("\x1b[1m\x1b"),
    "ansi_without_escape": coloured(""),
    "ansi_caret": coloured("^["),
    "ansi_u001b": coloured(r"\u001b"),
    "ansi_x1b": coloured(r"\x1b"),
    "ansi_033": coloured(r"\033"),
    "ansi_hash": coloured("#033"),
    "ansi_symbol": coloured("\u241b"),
}


# Order


@shape
def newest_first(log: bytes) -> bytes:
    """Every line its own entry with a time of its collector, the newest on top."""
    return joined(reversed([f"{iso(n)} {line}" for n, line in enumerate(lines(log))]))


@shape
def newest_first_entries(log: bytes) -> bytes:
    """One entry holds a record with its traceback; only its first line has the collector's time."""
    rows = [f"{iso(n)} " + "\n".join(entry) for n, entry in enumerate(entries(log))]
    return joined(reversed(rows))


@shape
def newest_first_json(log: bytes) -> bytes:
    return joined(reversed([json.dumps({"timestamp": iso(n), "message": line}) for n, line in enumerate(lines(log))]))


@shape
def newest_first_json_entries(log: bytes) -> bytes:
    rows = [json.dumps({"timestamp": iso(n), "message": "\n".join(entry)}) for n, entry in enumerate(entries(log))]
    return joined(reversed(rows))


@shape
def newest_first_seconds(log: bytes) -> bytes:
    """A time of whole seconds: many lines share one."""
    return joined(reversed([f"{when(n):%Y-%m-%d %H:%M:%S} {line}" for n, line in enumerate(lines(log))]))


@shape
def newest_first_one_time(log: bytes) -> bytes:
    """Every line its own entry; lines written at once share a time and stand in the order they came in."""
    rows = [[f"{iso(n)} {line}" for line in entry] for n, entry in enumerate(entries(log))]
    return joined(row for entry in reversed(rows) for row in entry)


@shape
def tac(log: bytes) -> bytes:
    """No times but the engine's own."""
    return joined(reversed(lines(log)))


@shape
def newest_first_csv(log: bytes) -> bytes:
    rows = ['"{}","{}"'.format(iso(n), line.replace('"', '""')) for n, line in enumerate(lines(log))]
    return joined(["Date,Message", *reversed(rows)])


# Width


def plain(line: str) -> str:
    """As a terminal shows it: without colours, tabs as blanks."""
    return re.sub(r"\x1b\[[0-9;?]*[@-~]", "", line).expandtabs()


def wrapped(width: int, pad: bool = False, indent: str = "") -> Shape:
    def made(log: bytes) -> bytes:
        out: list[str] = []
        for line in lines(log):
            line = plain(line)
            rows = [line[:width]]
            rest = line[width:]
            while rest:
                rows.append(indent + rest[: width - len(indent)])
                rest = rest[width - len(indent) :]
            out += [row.ljust(width) for row in rows] if pad else rows
        return joined(out)

    return made


for width in (80, 100, 120, 200):
    SHAPES[f"wrapped_{width}"] = wrapped(width)
SHAPES["wrapped_80_padded"] = wrapped(80, pad=True)
SHAPES["wrapped_stripped"] = lambda log: joined(row.rstrip() for row in wrapped(100)(log).decode().split("\n"))
SHAPES["padded_200"] = lambda log: joined(plain(line).ljust(200) for line in lines(log))


# Markdown


@shape
def fenced(log: bytes) -> bytes:
    return joined(
        ["### Describe the bug", "", "The server does not come up.", "", "```shell", *lines(log), "```", "", "Thanks!"]
    )


@shape
def fenced_one_tick(log: bytes) -> bytes:
    return joined(["`" + line + "`" if line else line for line in lines(log)])


@shape
def details(log: bytes) -> bytes:
    return joined(["<details><summary>log</summary>", "", "```", *lines(log), "```", "</details>"])


@shape
def html_pre(log: bytes) -> bytes:
    return joined(["<pre><code>", *(html.escape(line) for line in lines(log)), "</code></pre>"])


@shape
def blank_between(log: bytes) -> bytes:
    """Every line break doubled."""
    return joined(row for line in lines(log) for row in (line, ""))


@shape
def trailing_backslash(log: bytes) -> bytes:
    return joined(line + "  " for line in lines(log))


# Several at once


def both(*names: str) -> Shape:
    def made(log: bytes) -> bytes:
        for name in names:
            log = SHAPES[name](log)
        return log

    return made


@shape
def docker_json_colour(log: bytes) -> bytes:
    """An engine that colours its prefix, in docker's file."""
    rows = [re.sub(r"^(\(.+?\)|\[.+?\])", "\x1b[36m\\1\x1b[0m", line) for line in lines(log)]
    return joined(json.dumps({"log": line + "\n", "stream": "stderr", "time": iso(n)}) for n, line in enumerate(rows))


for names in (
    ("docker_compose", "wrapped_120"), ("kubectl_prefix_timestamps", "wrapped_200"), ("wrapped_100", "quoted_mail"),
    ("wrapped_120", "numbered_bar"), ("ansi_without_escape", "docker_timestamps"), ("newest_first", "crlf"),
    ("docker_json", "newest_first_seconds"), ("wrapped_100", "html_escaped"), ("newest_first", "utf16_le"),
    ("docker_timestamps", "tac"), ("journalctl", "html_escaped"), ("ansi_u001b", "csv_export"), ("indented", "crlf"),
    ("journalctl_iso", "json_array"), ("fenced", "indented"), ("fenced", "wrapped_120"), ("newest_first_json", "utf8_bom"),
):  # fmt: skip
    SHAPES["+".join(names)] = both(*names)
