"""Judge NVIDIA Dynamo's standalone KV indexer (package ``ai-dynamo-runtime``) as a whole process.

::

    report = judge_dynamo("1.6.1", selection=Selection(only=("slot8/*",)))
    report.judgements, report.behaviours

Every vector is published under an instance and a model of its own, so that no verdict depends on another, and followed by a
good batch; what ``/dump`` shows then is held against what the vector means.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from kvwire import __version__
from kvwire.dialects import DIALECTS
from kvwire.errors import UsageError
from kvwire.hashing.dynamo import tokens_seed
from kvwire_conform.consumer import Known, Progress, Selection, cases_of, conclude
from kvwire_conform.consumer_model import AnswerVerdict, Consumer, ConsumerReport, Judgement
from kvwire_conform.golden import load, manifest_of
from kvwire_conform.routers.behaviours import BEHAVIOURS, run_behaviours
from kvwire_conform.routers.errors import RouterError
from kvwire_conform.routers.known import apply_known, behaviour_id
from kvwire_conform.routers.run import PACKAGE, RouterRun
from kvwire_conform.routers.vectors import judge_vector

__all__ = ["CLAIMED", "DEFAULT_RELEASE", "judge_dynamo"]

TOOL = f"kvwire-conform {__version__}"
DEFAULT_RELEASE = "1.6.1"

CLAIMED = tuple(name for name in DIALECTS if name != "slot6-b2")
"""What Dynamo is meant to read: every SGLang and vLLM that sends a DP rank."""

_NOTES = (
    "judged by what /dump shows: hash, parent, tokens (by the router's own hash, which covers salt and LoRA name), tier and "
    "DP rank. lora_id, other extra keys, group and kind, ownership, session and lookahead do not show and are not judged; "
    "neither are blocks that this index leaves out by design: other locality than LOCAL, other groups than main attention, "
    "block sizes that differ from the registered one, blocks without tokens."
)


def judge_dynamo(
    release: str = DEFAULT_RELEASE,
    *,
    url: str | None = None,
    host: str = "127.0.0.1",
    selection: Selection | None = None,
    known: Known | None = None,
    behaviours: bool = True,
    patience: float = 5.0,
    progress: Progress | None = None,
) -> ConsumerReport:
    """Start a release's indexer, or use a running one, and judge it. Ctrl-C gives the report of what was judged so far.

    Args:
        release: of ``ai-dynamo-runtime``, from the cache or by pip. Of a running router only its name in the report.
        url: of a running one, e.g. ``http://host:8090``; its log cannot be seen, so a batch that it refuses is told by its
            state alone.
        host: address of ours that the router can connect to.
        selection: which vectors; of all kinds but invalid unless it says so. Nothing is generated.
        known: known failures; entries about behaviours are called ``behaviour/<id>``, their verdict is ``wrong``.
        behaviours: also judge gap, replay, restart and duplicate.
        patience: seconds for which a good batch may fail to show.

    Raises:
        UsageError: a selection that matches nothing, known-failures files that cannot be used, an url that is none, or
            xxhash is missing.
    """
    # Fails here, before anything is started, where xxhash is missing.
    tokens_seed("any name")
    known, selection = known or Known(), selection or Selection()
    known.read()
    if selection.seed is not None:
        raise UsageError("a router is judged by golden vectors; there is no seed")
    consumer = Consumer(
        name="dynamo-indexer",
        version=release if url is None else "",
        language="Rust",
        dialects=CLAIMED,
        decoder="zmq_wire, behind ZeroMQ and HTTP",
        homepage="https://github.com/ai-dynamo/dynamo",
        notes=_NOTES,
    )
    cases = cases_of(consumer, selection)
    chosen = [case.id for case in cases.chosen if selection.kind is not None or case.kind != "invalid"]
    report = ConsumerReport(
        tool=TOOL,
        mode="router",
        subject=[f"{PACKAGE}=={release}" if url is None else url],
        suite=selection.suite or manifest_of().suite,
        started=time.time(),
        rerun=f"kvwire-conform router dynamo {f'--release {release}' if url is None else f'--url {url}'} --only ID -v",
    )
    began = time.monotonic()
    run = RouterRun(release, url, host, patience)
    try:
        with run:
            report.consumer = consumer
            _judge_all(run, report, chosen, progress)
            if behaviours:
                run_behaviours(run, report.behaviours)
    except RouterError as error:
        report.advice = [str(error), *(f"its log: {line}" for line in error.log)]
        report.consumer = None if not report.judgements else report.consumer
        unreachable = True
    except KeyboardInterrupt:
        report.interrupted = True
        unreachable = False
    else:
        unreachable = False
    judged = {one.id for one in report.judgements}
    report.not_run = [ident for ident in chosen if ident not in judged]
    report.seconds = round(time.monotonic() - began, 3)
    not_chosen = {case.id for case in cases.chosen} - set(chosen)
    left_out = [*cases.left_out, *sorted(not_chosen)]
    conclude(report, known, left_out=[*left_out, *map(behaviour_id, BEHAVIOURS)])
    apply_known(report, known, unreachable=unreachable)
    return report


def _judge_all(run: RouterRun, report: ConsumerReport, chosen: Sequence[str], progress: Progress | None) -> None:
    failed = 0
    for done, ident in enumerate(chosen, start=1):
        vector = load(ident)
        found = judge_vector(run, vector)
        judged = found.verdict is not AnswerVerdict.UNSUPPORTED
        report.judgements.append(
            Judgement(
                id=vector.id,
                dialect=vector.dialect,
                kind=vector.kind,
                verdict=found.verdict,
                required=judged and vector.dialect in CLAIMED,
                differences=found.differences,
                said=found.said,
                note=found.note,
            )
        )
        failed += found.verdict is not AnswerVerdict.EXACT
        if progress is not None:
            progress(done, len(chosen), failed)
