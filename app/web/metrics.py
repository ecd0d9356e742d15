"""Targets and their news in, Prometheus text out."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from app import __version__

if TYPE_CHECKING:
    from app.hub import News
    from app.service import Service
    from app.web.stream import Broadcast

STATES = ("idle", "starting", "ready", "crashed", "stalled", "stopped")


class Tally(Collector):
    """Counts news as they come and reads the status when asked. Used from one event loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.broadcasts: Mapping[str, Broadcast] = {}
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._starts: Counter[tuple[str, str]] = Counter()
        self._ends: Counter[tuple[str, str, str]] = Counter()
        self._via: dict[str, str] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def take(self, target: str, news: News) -> None:
        """Counts one news."""
        data = news.data
        if news.kind == "attempt":
            self._via[target] = str(data.get("via") or "")
            self._starts[target, self._via[target]] += 1
        elif news.kind == "verdict" and data.get("stage") in ("early", "refined"):
            self._verdicts[target, str(data.get("rule"))] += 1
        elif news.kind == "state" and data.get("state") == "ready":
            self._ends[target, self._via.get(target, ""), "ready"] += 1
        elif news.kind == "ended":
            self._ends[target, self._via.get(target, ""), str(data.get("state"))] += 1

    def text(self) -> tuple[bytes, str]:
        """The page, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("bringup_info", "The release that answers.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        up = GaugeMetricFamily("bringup_up_seconds", "Seconds since this service began.")
        up.add_metric([], time.time() - self._service.began)
        yield up
        yield from self._gauges()
        verdicts = CounterMetricFamily("bringup_verdicts", "Causes named.", labels=["target", "cause"])
        for key, count in sorted(self._verdicts.items()):
            verdicts.add_metric(list(key), count)
        yield verdicts
        starts = CounterMetricFamily(
            "bringup_starts", "Starts, by the remedy that led to them.", labels=["target", "remedy"]
        )
        for key, count in sorted(self._starts.items()):
            starts.add_metric(list(key), count)
        yield starts
        labels = ["target", "remedy", "outcome"]
        ends = CounterMetricFamily(
            "bringup_start_outcomes", "What starts came to, by the remedy that led to them.", labels=labels
        )
        for triple, count in sorted(self._ends.items()):
            ends.add_metric(list(triple), count)
        yield ends

    def _gauges(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("bringup_state", "1 for the state that the target is in.", labels=["target", "state"])
        phase = GaugeMetricFamily("bringup_phase", "1 for the phase that is running.", labels=["target", "phase"])
        took = GaugeMetricFamily(
            "bringup_phase_seconds", "Seconds of each phase of this start.", labels=["target", "phase"]
        )
        left = GaugeMetricFamily("bringup_left_seconds", "Seconds until ready, as estimated.", labels=["target"])
        idle = GaugeMetricFamily("bringup_log_idle_seconds", "Seconds since the log grew.", labels=["target"])
        lag = GaugeMetricFamily("bringup_tail_lag_bytes", "Bytes of the log that were not read yet.", labels=["target"])
        attempt = GaugeMetricFamily("bringup_attempt", "The number of the attempt.", labels=["target"])
        readers = GaugeMetricFamily("bringup_stream_readers", "Open event streams.", labels=["target"])
        dropped = CounterMetricFamily("bringup_stream_dropped", "Readers that were too slow.", labels=["target"])
        for name, target in self._service.targets.items():
            status = target.hub.status
            for each in STATES:
                state.add_metric([name, each], float(status.get("state") == each))
            for row in status.get("phases") or ():
                phase.add_metric([name, row["id"]], float(row["state"] == "running"))
                if row.get("seconds") is not None:
                    took.add_metric([name, row["id"]], row["seconds"])
            if status.get("left"):
                left.add_metric([name], status["left"]["seconds"])
            if status.get("idle") is not None:
                idle.add_metric([name], status["idle"])
            if (behind := _behind(status)) is not None:
                lag.add_metric([name], behind)
            attempt.add_metric([name], status.get("attempt") or 0)
            if name in self.broadcasts:
                readers.add_metric([name], self.broadcasts[name].readers)
                dropped.add_metric([name], self.broadcasts[name].dropped)
        yield from (state, phase, took, left, idle, lag, attempt, readers, dropped)


def _behind(status: Mapping[str, Any]) -> float | None:
    """How far the reading is behind the log's end; None without a log."""
    if not status.get("log") or status.get("bytes") is None:
        return None
    try:
        return max(0.0, float(os.stat(status["log"]).st_size - status["bytes"]))
    except OSError:
        return None
