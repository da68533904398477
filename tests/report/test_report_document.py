"""What the report says: marks everywhere, published numbers only beside what may be compared, nothing invented."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sm86.measure import compare, judge
from sm86.record import Number, Record, load
from sm86.report.build import document
from sm86.report.document import Document
from sm86.report.gather import Gathered, Machine, Source, gather
from sm86.report.markdown import markdown
from sm86.report.sections import measured, parts
from sm86.spec import load_all, load_proofs
from tests.report import made_up

DATA = Path(__file__).parent / "data"
NOW = datetime(2026, 2, 3, tzinfo=UTC)
PUBLISHED = re.compile(r"(?<![\d.])(?:59\.6|81\.3|104\.5|120\.1|999\.5)(?!\d)")


def real() -> list[Source]:
    return [Source(load(path), path.name) for path in sorted(DATA.rglob("*.json"))]


def gathered(records: list[Record]) -> Gathered:
    return gather(made_up.sources(records), [], load_all())


def text_of(records: list[Record]) -> str:
    return markdown(document(gathered(records), NOW))


def section(text: str, title: str) -> str:
    """One section of the Markdown, by its heading."""
    found = re.split(rf"^#+ {re.escape(title)}.*$", text, flags=re.M)
    assert len(found) >= 2, f"no section {title}"
    return re.split(r"^#{1,3} ", found[1], flags=re.M)[0]


def test_the_rules_are_the_benchmarks_own() -> None:
    assert judge.GATES == measured.GATES
    assert (compare.BETTER, compare.WITHIN, compare.WORSE) == measured.COMPARED


class TestRealCpuRecords:
    def made(self) -> Document:
        return document(gather(real(), [], load_all()), NOW)

    def test_every_number_carries_the_mark(self) -> None:
        text = markdown(self.made())
        numbers = [line for line in text.splitlines() if re.search(r"\*\*[\d.]+\*\*", line)]
        assert len(numbers) > 10
        assert [line for line in numbers if "**CPU**" not in line] == []
        assert all(figure.chart.mark == "CPU" for figure in self.made().figures())
        assert all("CPU" in s.mark for s in self.made().sections if s.key.startswith("m1"))

    def test_nothing_published_stands_beside_them(self) -> None:
        text = markdown(self.made())
        assert not PUBLISHED.search(text)
        assert "measured against published" not in text

    def test_the_measured_value_is_the_records(self) -> None:
        bench = next(s.record for s in real() if s.record.kind == "bench")
        number = measured.aggregate(bench)
        assert number is not None
        assert f"**{number.value:.1f}** **CPU**" in section(markdown(self.made()), "Envelopes: measured")

    def test_there_is_nothing_to_publish(self) -> None:
        text = section(markdown(self.made()), "Publish summary")
        assert "There is nothing to publish" in text and text.count("Missing:") == 3
        assert not re.search(r"\d+\.\d", text)


class TestPublishSummary:
    def test_a_whole_rig(self) -> None:
        text = section(text_of(made_up.rig()), "Publish summary")
        assert "262,144 tokens, one sequence at 57.2 tok/s (within noise against the published 59.6)" in text
        assert "118.8 tok/s with 4 sequences of 81,920 tokens" in text
        assert "fp8\\_ds\\_mla KV cache" in text and "CUDA graph decode" in text
        assert "All of these numbers are of the checked-in envelopes as they stand" in text
        assert "docker compose up sm86-262k\ndocker compose up sm86-80k-4seq" in text
        assert "Missing" not in text

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda r: None if r.kind == "verify" else r, "no verified log of that server is here"),
            (lambda r: replace(r, envelope_digest="0" * 16), "the envelope has changed since"),
            (lambda r: made_up.verify(r.envelope, 1, ("out-of-memory", "ready")) if r.kind == "verify" else r,
             "its log does not pass every rule"),
            (lambda r: replace(r, verdicts=r.verdicts[1:]) if r.kind == "bench" else r, "not a coherent measurement"),
            (lambda r: replace(r, details={**r.details, "context": 4096}) if r.kind == "bench" else r,
             "its benchmark was of"),
            (lambda r: replace(r, details={**r.details, "wanted_prompt_tokens": 60000}) if r.kind == "bench" else r,
             "its prompts were of 60000 tokens"),
            (lambda r: replace(r, details={**r.details, "wanted_prompt_tokens": None}) if r.kind == "bench" else r,
             "its prompts were of unknown tokens"),
            (lambda r: replace(r, conditions=made_up.conditions(git_rev="e" * 40)) if r.kind == "verify" else r,
             "no verified log of that server is here"),
        ],
    )  # fmt: skip
    def test_what_is_not_proven_is_missing(self, change, why: str) -> None:
        records = [new for old in made_up.rig()[:3] if (new := change(old)) is not None]
        text = section(text_of(records), "Publish summary")
        assert why in text
        assert "57.2" not in text and "The longest measured" not in text

    def test_a_proof_of_the_code_path_is_no_number(self) -> None:
        """Its checkpoint is made up; everything else about it may be as good as can be."""
        (proof, *_) = load_proofs()
        changes = {"envelope": proof.name, "envelope_digest": proof.digest()}
        records = [replace(one, **changes) for one in made_up.rig()[:3]]
        records[2] = replace(
            records[2],
            details={**records[2].details, "context": proof.serve.context, "sequences": proof.serve.sequences},
        )
        gathered = gather(made_up.sources(records), [], (*load_all(), *load_proofs()))
        text = section(markdown(document(gathered, NOW)), "Publish summary")
        assert "with a made-up checkpoint" in text and "57.2" not in text

    @pytest.mark.parametrize("others", [None, "f" * 40])
    def test_numbers_of_several_revisions_or_of_none_are_not_as_checked_in(self, others: str | None) -> None:
        records = made_up.rig()
        records = [
            replace(r, conditions=made_up.conditions(git_rev=others))
            if others is None or r.envelope == "sm86-80k-4seq"
            else r
            for r in records
        ]
        text = section(text_of(records), "Publish summary")
        assert "Not all of these numbers are of the checked-in" in text

    def test_an_override_is_no_checked_in_envelope(self) -> None:
        changed = made_up.conditions(overrides={"NCCL_ALGO": "Tree"})
        text = section(text_of([replace(r, conditions=changed) for r in made_up.rig()[:3]]), "Publish summary")
        assert "Not all of these numbers" in text and "NCCL\\_ALGO=Tree" in text

    def test_an_override_that_is_the_envelopes_own_value_is(self) -> None:
        usual = made_up.conditions(overrides={"FUSE_ALLREDUCE_RMS": "1"})
        text = section(text_of([replace(r, conditions=usual) for r in made_up.rig()[:3]]), "Publish summary")
        assert "All of these numbers are of the checked-in envelopes" in text

    def test_a_claim_needs_its_rule(self) -> None:
        records = made_up.rig()[:3]
        seen = tuple(v for v in records[1].verdicts if v.name != "graphs-captured")
        records[1] = replace(records[1], verdicts=seen)
        text = section(text_of(records), "Publish summary")
        assert "marlin MoE" in text
        assert "Missing: the proof of CUDA graph decode" in text
        assert "Missing: a benchmark of" in text and "`sm86-80k-4seq`" in text

    @pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA GeForce RTX 4090"])
    def test_another_gpu_is_marked_and_publishes_nothing(self, gpu: str) -> None:
        text = text_of([replace(r, conditions=made_up.conditions(gpu)) for r in made_up.rig()[:12]])
        assert "There is nothing to publish" in text
        assert not PUBLISHED.search(text)
        assert "**57.2** **other GPU**" in text


class TestPublishedNumbers:
    def test_beside_what_was_compared(self) -> None:
        text = section(text_of(made_up.rig()), "Envelopes: measured against published")
        assert re.search(r"`sm86-262k` .* \| 59\.6 \| within noise", text)

    def test_not_beside_what_could_not_be(self) -> None:
        records = [made_up.bench("sm86-262k", 57.25, verdict="cannot be compared"), made_up.verify("sm86-262k")]
        text = text_of(records)
        assert not PUBLISHED.search(text)
        assert "not compared with a published number, as the rig is another one" in text

    def test_a_ladder_keeps_the_same_rule(self) -> None:
        assert "999" not in text_of([made_up.ladder()])


class TestMachines:
    def machines(self, records: list[Record]) -> tuple[Machine, ...]:
        return gathered(records).machines

    def test_rigs_are_not_mixed(self) -> None:
        one = made_up.bench("sm86-262k", 57.25)
        other = replace(
            one, conditions=made_up.conditions(gpus=({"uuid": "GPU-99", "name": "NVIDIA GeForce RTX 3090"},))
        )
        first, second = self.machines([one, other])
        assert (first.name, second.name) == ("8 x NVIDIA GeForce RTX 3090", "1 x NVIDIA GeForce RTX 3090")

    def test_a_log_that_names_some_of_the_gpus_is_of_their_machine(self) -> None:
        few = made_up.verify("sm86-262k", conditions=made_up.conditions(gpus=({"uuid": made_up.UUIDS[3]},)))
        (machine,) = self.machines([made_up.bench("sm86-262k", 57.25), few])
        assert len(machine.entries) == 2 and machine.joined == ()

    def test_a_record_without_machine_joins_only_where_there_is_one(self) -> None:
        bare = made_up.verify("sm86-262k", conditions=made_up.conditions(gpus=(), host={}))
        one = made_up.bench("sm86-262k", 57.25)
        (machine,) = self.machines([one, bare])
        assert [entry.kind for entry in machine.joined] == ["verify"]
        other = replace(one, conditions=made_up.conditions(gpus=({"uuid": "GPU-99", "name": "RTX 3090"},)))
        assert len(self.machines([one, other, bare])) == 3

    def test_a_record_of_another_host_does_not_join(self) -> None:
        """A rig check on a laptop is none of the rig's: neither of them names a GPU that could tell."""
        laptop = {"cpu": "Laptop CPU", "cores": 4, "memory_mib": 16000}
        rig = made_up.bench("sm86-262k", 57.25)
        there, here = (
            made_up.record("doctor", "sm86-262k", 9, conditions=made_up.conditions(gpus=(), **host))
            for host in ({"host": laptop}, {})
        )
        names = [machine.name for machine in self.machines([rig, there])]
        assert names == ["8 x NVIDIA GeForce RTX 3090", "Laptop CPU, no GPU recorded"]
        assert len(self.machines([rig, here])) == 1

    def test_a_number_of_unknown_conditions_stands_alone(self) -> None:
        unknown = made_up.bench("sm86-262k", 99.0, conditions=made_up.conditions(gpus=(), mark="conditions unknown"))
        rig, alone = self.machines([made_up.bench("sm86-262k", 57.25), unknown])
        assert (rig.mark, alone.mark) == ("", "conditions unknown")

    def test_one_forced_run_marks_its_machine(self) -> None:
        forced = made_up.verify("sm86-262k", conditions=made_up.conditions(mark="emulated"))
        (machine,) = self.machines([made_up.bench("sm86-262k", 57.25), forced])
        assert machine.mark == "emulated"

    def test_a_cpu_engine_is_marked_whatever_its_record_says(self) -> None:
        record = replace(real()[0].record, conditions=replace(real()[0].record.conditions, mark=""))
        (machine,) = self.machines([record])
        assert machine.mark == "CPU"

    @pytest.mark.parametrize("good", [True, False])
    def test_rounds_that_were_measured_again_stand_with_the_number(self, good: bool) -> None:
        once = made_up.bench("sm86-64k", 90)
        late = {"window": {"refused": "sequence 2 got its first token at 9.1 s"}, "sequences": []}
        changed = replace(once, details={**once.details, "left_out": [late, late]})
        if not good:
            changed = replace(changed, numbers=())
        text = text_of([changed])
        table = section(text, "Envelopes: measured")
        assert ("89.1 to 90.9 in 3; 2 left out" if good else "2 left out") in table
        why = "2 rounds were left out and measured again: sequence 2 got its first token at 9.1 s."
        assert why in section(text, "sm86-64k")
        assert "left out" not in section(text_of([once]), "Envelopes: measured")
        assert "left out and measured again" not in text_of([once])

    def test_the_newest_is_shown_and_the_older_is_listed(self) -> None:
        records = [made_up.bench("sm86-262k", 58.5, 0), made_up.bench("sm86-262k", 41.5, 90)]
        text = section(text_of(records), "Envelopes: measured against published")
        head, _, below = text.partition("Earlier benchmarks")
        assert "**41.5**" in head and "58.5" not in head and "58.5" in below

    @pytest.mark.parametrize("sequences", [0, -1, None, "2"])
    def test_a_benchmark_of_no_sequences_is_no_point_of_the_curve(self, sequences: object) -> None:
        odd = made_up.bench("sm86-262k", 57.25)
        odd = replace(odd, details={**odd.details, "sequences": sequences})
        others = [made_up.bench(name, 90.0) for name in ("sm86-176k-2seq", "sm86-114k-3seq")]
        text = section(text_of([odd, *others]), "Curve")
        assert "R1" in text and text.count("[R") == 2


class TestKinds:
    def test_a_kind_that_nobody_knows_is_listed(self) -> None:
        odd = made_up.record(
            "weather", "sm86-262k", numbers=(Number("rain", 3.25, "mm"),), details={"sky": {"blue": 1}}
        )
        text = text_of([odd])
        assert "Records of kind weather" in text and "3.25" in text and "sky / blue: 1" in text

    @pytest.mark.parametrize("kind", ["boot", "verify", "bench", "trace", "comm", "ladder", "plan", "probe", "doctor"])
    @pytest.mark.parametrize(
        "details",
        [
            {},
            {
                "rows": 3,
                "rungs": "x",
                "files": [1],
                "repeats": 7,
                "findings": 1,
                "telemetry": {"gpus": [1]},
                "failure": [],
            },
            {"rows": [{}], "rungs": [{}], "files": [{"graphs": {"buckets": []}}], "repeats": [{"window": 1}]},
            {"telemetry": {"gpus": [{"statistics": {"power_w": [1]}}], "limits": [{}]}, "failure": {"lines": "x"}},
        ],
    )
    def test_details_of_any_form_are_no_fault(self, kind: str, details: dict) -> None:
        numbers = (Number("decode aggregate", 12.5, "tok/s"),)
        text = text_of([made_up.record(kind, "sm86-262k", details=details, numbers=numbers)])
        assert "12.5" in text

    def test_comm_rows_and_what_they_say(self) -> None:
        text = section(text_of([made_up.comm()]), "sm86-64k")
        assert "| `sm86-host` | pass | 65 (64 to 68) |" in text
        assert "not available: no peer access" in text
        assert "To use: `sm86-host`" in text

    def test_a_ladder_says_where_it_stopped(self) -> None:
        text = section(text_of([made_up.ladder()]), "sequence")
        assert "It stopped at `4x`: out of memory; a graph did not fit" in text
        assert "**67.0**" in text

    def test_what_was_not_measured_is_said(self) -> None:
        text = text_of([made_up.boot("sm86-262k")])
        assert "No record here holds: a verified log, a benchmark, memory plan, trace buckets" in text


def test_every_number_has_its_record_and_every_record_its_conditions() -> None:
    text = text_of(made_up.rig())
    count = len(made_up.rig())
    listed = section(text, "Records and conditions")
    for number in range(1, count + 1):
        assert re.search(rf"^\| \[R{number}\]", listed, re.M)
    rows = [line for line in text.splitlines() if re.match(r"\| .*\*\*[\d.]+\*\* (?:tok/s|s|us)", line)]
    assert len(rows) > 20 and all(re.search(r"\[R\d+\]", row) for row in rows)
    assert "GPU 7: index 7, uuid GPU-00000007" in text and "revision: `" + made_up.REVISION in text


class TestMoreRealRecords:
    """A comm matrix of CPU processes and a ladder that stopped, both recorded by the commands themselves."""

    def made(self) -> str:
        more = [Source(load(path), path.name) for path in sorted((DATA.parent / "more_data").glob("*.json"))]
        return markdown(document(gather([*real(), *more], [], load_all()), NOW))

    def test_a_mark_stands_once_in_a_note(self) -> None:
        """The record of the matrix was written when its notes still said it twice."""
        rows = [line for line in self.made().splitlines() if re.match(r"\| (nccl|gloo-threads-2) (8|32) KiB", line)]
        assert len(rows) == 4
        for row in rows:
            _, value, _, note, *_ = row.split(" | ")
            assert "**CPU, emulated**" in value and note == "gloo on the CPU, emulated"

    @pytest.mark.parametrize(
        ("note", "shown"),
        [
            ("CPU number; for information", "for information"),
            ("CPU number", ""),
            ("CPU", ""),
            ("CPU gloo", "gloo"),
            ("CPU, emulated gloo", "CPU, emulated gloo"),
            ("CPUs of two sockets", "CPUs of two sockets"),
            ("measured on the CPU", "measured on the CPU"),
        ],
    )
    def test_only_a_mark_that_leads_a_note_is_taken_off(self, note: str, shown: str) -> None:
        assert parts._unmarked(note, "CPU") == shown and parts._unmarked(note, "") == note

    def test_one_machine_whose_emulated_numbers_say_so(self) -> None:
        text = self.made()
        assert "## AMD EPYC, 2 cores (CPU)" in text and text.count("\n## AMD EPYC") == 1
        numbers = [line for line in section(text, "rig").splitlines() if re.search(r"\*\*[\d.,]+\*\* us", line)]
        assert len(numbers) == 4 and all("**CPU, emulated**" in line for line in numbers)
        assert "not available: it runs on GPUs only" in text

    def test_the_ladder_says_why_it_stopped(self) -> None:
        text = section(self.made(), "sequence")
        assert "| `cpu-one` | 1 x 1,024 | pass | **21.3** **CPU** |" in text
        assert "It stopped at `cpu-smoke`: not the envelope" in text
        assert "not of the form" not in self.made()
