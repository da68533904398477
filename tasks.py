"""The commands: arguments in, words out. What they do lives in sm86/."""

from collections.abc import Callable

from invoke import Collection, Exit, task

from sm86.cli.guard import guard
from sm86.cli.invoke_exit import install

install()

ENVELOPE = "name of an envelope (`invoke envelopes`), or the path of its TOML file"
ENGINE = "docker (default), or local: a process on this machine"
JSON = "print JSON instead of words"
DRY_RUN = "say what would be done, do nothing"
PORT = "port of the server on this machine (default: SM86_PORT or 8000)"


def _end(call: Callable[[], int]) -> None:
    code = guard(call)
    if code:
        raise Exit(code=code)


@task(help={"json": JSON})
def envelopes(_, json=False):
    """List the envelopes: what each one serves, and what is published for it."""
    from sm86.cli import envelopes as cli

    _end(lambda: cli.envelopes(json=json))


@task(help={"check": "write nothing; exit 1 when a rendered file differs from the specs", "json": JSON})
def render(_, check=False, json=False):
    """Render compose/, compose.yaml, .env.example and the tables of docs/ from the specs."""
    from sm86.cli import render as cli

    _end(lambda: cli.render(check=check, json=json))


@task(
    help={
        "target": "gpu (default): the image of the rig; cpu: the embedded default's",
        "image": "tag to give (default: the one that the services use)",
        "offline-base": "make the base image from Debian packages, without a registry",
        "wheels": "folder of wheels to use before the package index (default: pip's find-links)",
        "no-cache": "repeat every step",
        "cubin": "with FlashInfer's prebuilt kernels (none is for SM 8.6)",
        "variant": "the gpu kernel libraries: native (default), compiled for SM 8.6 here; wheel, as published",
        "dry-run": DRY_RUN,
        "json": JSON,
    }
)
def build(
    _,
    target="gpu",
    image=None,
    offline_base=False,
    wheels=None,
    no_cache=False,
    cubin=False,
    variant="native",
    dry_run=False,
    json=False,
):
    """Build the image that the envelopes run on."""
    from sm86.cli import build as cli

    _end(lambda: cli.build(target, image, offline_base, wheels, dry_run, json, no_cache, cubin, variant))


@task(
    iterable=["name"],
    help={
        "name": "only this lock; may be repeated (default: all)",
        "check": "resolve nothing, write nothing; exit 1 when a lock is not of the pins or was altered",
        "dry-run": DRY_RUN,
        "json": JSON,
    },
)
def lock(_, name=None, check=False, dry_run=False, json=False):
    """Resolve what the images are made from into docker/locks, with hashes."""
    from sm86.cli import lock as cli

    _end(lambda: cli.lock(tuple(name or ()), check, dry_run, json))


@task(
    iterable=["override"],
    help={
        "envelope": ENVELOPE,
        "engine": ENGINE,
        "port": PORT,
        "override": "NAME=VALUE for this run only, as in docs/runbook.md; may be repeated",
        "dry-run": DRY_RUN,
        "json": JSON,
    },
)
def up(_, envelope, engine="docker", port=None, override=None, dry_run=False, json=False):
    """Start an envelope and wait until it serves, phase by phase."""
    from sm86.cli import boot as cli

    _end(lambda: cli.up(envelope, engine, port, tuple(override or ()), dry_run, json))


@task(help={"envelope": ENVELOPE, "engine": ENGINE, "dry-run": DRY_RUN})
def down(_, envelope, engine="docker", dry_run=False):
    """Stop an envelope; caches and weights stay."""
    from sm86.cli import boot as cli

    _end(lambda: cli.down(envelope, engine, dry_run))


@task(help={"envelope": ENVELOPE, "engine": ENGINE, "json": JSON})
def status(_, envelope, engine="docker", json=False):
    """Say what state an envelope's server is in."""
    from sm86.cli import boot as cli

    _end(lambda: cli.status(envelope, engine, json))


@task(help={"envelope": ENVELOPE, "engine": ENGINE, "follow": "go on as lines come", "tail": "only the last N lines"})
def logs(_, envelope, engine="docker", follow=False, tail=None):
    """Print an envelope's server log."""
    from sm86.cli import boot as cli

    _end(lambda: cli.logs(envelope, engine, follow, tail))


@task(
    help={
        "envelope": ENVELOPE,
        "log": "a log file, or - for standard input (default: the running server's log)",
        "engine": ENGINE,
        "git-rev": "the revision that the log must come from (default: the manifest's must only be known and clean)",
        "json": JSON,
    }
)
def verify(_, envelope, log=None, engine="docker", git_rev=None, json=False):
    """Check a server's log against its envelope, rule by rule."""
    from sm86.cli import verify as cli

    _end(lambda: cli.verify(envelope, log, engine, git_rev, json))


@task(
    help={
        "envelope": ENVELOPE,
        "engine": ENGINE,
        "url": "base URL of the server (default: the running envelope's)",
        "api-key-file": "file that holds the API key",
        "repeats": "how many times (default: the envelope's)",
        "decode-tokens": "tokens that each sequence decodes (default: the envelope's)",
        "port": PORT,
        "dry-run": DRY_RUN,
        "json": JSON,
    }
)
def bench(
    _,
    envelope,
    engine="docker",
    url=None,
    api_key_file=None,
    repeats=None,
    decode_tokens=None,
    port=None,
    dry_run=False,
    json=False,
):
    """Measure decode on a running envelope, beside the published number."""
    from sm86.cli import served as cli

    _end(lambda: cli.bench(envelope, engine, url, api_key_file, repeats, decode_tokens, port, dry_run, json))


@task(
    help={
        "engine": ENGINE,
        "port": PORT,
        "offline-base": "make the base image from Debian packages, without a registry",
        "keep": "leave the server running",
        "dry-run": DRY_RUN,
        "json": JSON,
    }
)
def demo(_, engine="docker", port=None, offline_base=False, keep=False, dry_run=False, json=False):
    """The whole product on a real engine, no GPU needed: build, boot, verify, bench, one report."""
    from sm86.cli import demo as cli

    _end(lambda: cli.demo(engine, port, offline_base, keep, json, dry_run))


@task(
    iterable=["hide"],
    help={
        "records": "a folder of records, a record, or several with a comma between (default: results/)",
        "out": "folder to write into (default: results/report)",
        "redact": "take out what names a machine or a person: GPU ids, hosts, users, paths, addresses, keys",
        "hide": "with --redact: a further name to take out; may be repeated",
        "title": "headline of the report",
        "png": "write a PNG of every chart",
        "dry-run": DRY_RUN,
        "json": JSON,
    },
)
def report(_, records="", out=None, redact=False, hide=None, title=None, png=True, dry_run=False, json=False):
    """Make a page, Markdown and pictures from records, with the conditions of every number."""
    from sm86.cli import report as cli

    paths = [part for part in records.split(",") if part]
    _end(lambda: cli.report(paths, out or cli.OUT, redact, tuple(hide or ()), title, png, json, dry_run))


@task(
    optional=["what_if"],
    help={
        "envelope": ENVELOPE,
        "rig": "a profile of sm86/spec/rigs/, a .toml like them, or the .json of invoke doctor (default: 8x3090)",
        "model": "a checkpoint's folder or config.json (default: DeepSeek-V4-Flash)",
        "fit": "search the envelopes that fit the rig, and write the best as TOML",
        "what-if": "what must shrink for this context (alone: 393216 and 524288)",
        "check": "compare a boot's log (a file, or - for standard input) with the prediction for it",
        "context": "tokens of one sequence",
        "sequences": "sequences at once",
        "batched-tokens": "max_num_batched_tokens",
        "async-scheduling": "on or off",
        "blocks": "KV blocks of the pool",
        "pool-bytes": "bytes that vLLM measures for its pool; without --blocks they decide its size",
        "tensor-parallel": "GPUs that share one server",
        "out": "file for the envelope of --fit (default: its name)",
        "png": "draw the memory into this file, as stacked bars",
        "dry-run": DRY_RUN,
        "json": JSON,
        "record": "write a record of the plan, for the report",
    },
)
def plan(
    _,
    envelope=None,
    rig=None,
    model=None,
    fit=False,
    what_if=None,
    check=None,
    context=None,
    sequences=None,
    batched_tokens=None,
    async_scheduling=None,
    blocks=None,
    pool_bytes=None,
    tensor_parallel=None,
    out=None,
    png=None,
    dry_run=False,
    json=False,
    record=False,
):
    """Plan the memory of a server on a rig; search what fits; check a boot against it."""
    from sm86.cli import plan as cli

    settings = (context, sequences, batched_tokens, async_scheduling, blocks, pool_bytes, tensor_parallel)
    _end(lambda: cli.plan(envelope, rig, model, fit, what_if, check, *settings, out, png, dry_run, json, record))


@task(help={"before": "a record, or a folder of records", "after": "likewise", "json": JSON})
def compare(_, before, after, json=False):
    """Say which numbers moved beyond noise between two runs, and what differs in their conditions."""
    from sm86.cli import compare as cli

    _end(lambda: cli.compare(before, after, json))


@task(help={"fast": "without Docker and without booting an engine"})
def test(_, fast=False):
    """Run every check of the repository: lint, types, rendered files, tests with a real boot."""
    from sm86.cli import checks as cli

    _end(lambda: cli.test(fast))


@task(
    iterable=["only"],
    help={
        "engine": "docker (default): the image's Python; local: one of this machine that has torch",
        "envelope": "for whose decode size and calls to recommend (default: one to four sequences)",
        "only": "name or pattern of the settings to measure beside NCCL's own choice; may be repeated",
        "sizes": "KiB of one all-reduce, joined by commas (default: 2 to 128, and a prefill chunk)",
        "ranks": "how many GPUs (default: all)",
        "repeats": "fresh processes for each setting (default: 3)",
        "calls": "all-reduces in a decode step (default: the envelope's newest trace, else 87)",
        "recommend": "write the setting to use into this file as lines of .env; - prints them alone",
        "png": "draw the matrix into this file",
        "python": "with the engine local: the Python that has torch (default: this one)",
        "emulate": "CPU processes with gloo: shows the command, and no number of a rig",
        "dry-run": DRY_RUN,
        "json": JSON,
    },
)
def comm(
    _,
    engine="docker",
    envelope=None,
    only=None,
    sizes=None,
    ranks=None,
    repeats=None,
    calls=None,
    recommend=None,
    png=None,
    python=None,
    emulate=False,
    dry_run=False,
    json=False,
):
    """Measure every way of making the decode step's all-reduce, without a model."""
    from sm86.cli import comm as cli

    only = tuple(only or ())
    _end(
        lambda: cli.comm(
            engine, envelope, only, sizes, ranks, repeats, calls, recommend, png, python, emulate, dry_run, json
        )
    )


@task(
    default=True,
    name="read",
    help={
        "path": "a trace of the PyTorch profiler, or a folder of several ranks' traces",
        "rank": "only this rank",
        "tpot": "unprofiled milliseconds per token, to say how much tracing slowed the step",
        "png": "draw one step into this file",
        "record": "write a record for the report and the comm matrix; needs --envelope",
        "envelope": ENVELOPE,
        "json": JSON,
    },
)
def trace_read(_, path, rank=None, tpot=None, png=None, record=False, envelope=None, json=False):
    """Say where the GPU time of a decode step goes."""
    from sm86.cli import trace as cli

    _end(lambda: cli.trace(path, json, png, rank, tpot, record, envelope))


@task(
    name="capture",
    help={
        "envelope": ENVELOPE,
        "engine": ENGINE,
        "out": "folder for the traces (default: results/<envelope>/<UTC>-trace)",
        "prompt-tokens": "length of each prompt (default: 1024)",
        "png": "draw one step into this file",
        "port": PORT,
        "api-key-file": "file that holds the API key",
        "dry-run": DRY_RUN,
        "json": JSON,
    },
)
def trace_capture(
    _,
    envelope,
    engine="docker",
    out=None,
    prompt_tokens=None,
    png=None,
    port=None,
    api_key_file=None,
    dry_run=False,
    json=False,
):
    """Record decode steps of a running server that was started with SM86_PROFILE_STEPS, and analyse them."""
    from sm86.cli import trace_capture as cli

    _end(lambda: cli.capture(envelope, engine, out, prompt_tokens, png, port, api_key_file, dry_run, json))


@task(name="diff", help={"before": "a trace, a folder, or saved --json output", "after": "likewise", "json": JSON})
def trace_diff(_, before, after, json=False):
    """Say which buckets differ between two traces beyond the spread of their own steps."""
    from sm86.cli import trace as cli

    _end(lambda: cli.diff(before, after, json=json))


@task(
    name="dispatch",
    help={
        "envelope": ENVELOPE,
        "engine": ENGINE,
        "tokens": "tokens that each sequence decodes (default: 64)",
        "port": PORT,
        "api-key-file": "file that holds the API key",
        "dry-run": DRY_RUN,
        "json": JSON,
    },
)
def probe_dispatch(_, envelope, engine="docker", tokens=None, port=None, api_key_file=None, dry_run=False, json=False):
    """Boot once with dispatch diagnostics: were decode batches replayed from graphs, and if not, why?"""
    from sm86.cli import probe as cli

    _end(lambda: cli.dispatch(envelope, engine, tokens, port, api_key_file, dry_run, json))


@task(
    name="spec",
    help={
        "envelope": ENVELOPE,
        "engine": ENGINE,
        "config": "vLLM's JSON for drafting (default: the checkpoint's own MTP layer, one token)",
        "tokens": "tokens that each sequence decodes (default: 192)",
        "port": PORT,
        "api-key-file": "file that holds the API key",
        "dry-run": DRY_RUN,
        "json": JSON,
    },
)
def probe_spec(
    _, envelope, engine="docker", config=None, tokens=None, port=None, api_key_file=None, dry_run=False, json=False
):
    """Boot once with drafting on: is it captured and loses on compute, or dispatched wrongly?"""
    from sm86.cli import probe as cli

    _end(lambda: cli.spec(envelope, engine, config, tokens, port, api_key_file, dry_run, json))


TARGET = "gpu (default) or cpu: whose usual image name"


@task(
    name="check", help={"image": "tag or id (default: the one that the services use)", "target": TARGET, "json": JSON}
)
def image_check(_, image=None, target="gpu", json=False):
    """Prove what is in an image, without a GPU."""
    from sm86.cli import image as cli

    _end(lambda: cli.check(image, target, json))


@task(name="diff", help={"before": "an image", "after": "another", "json": JSON})
def image_diff(_, before, after, json=False):
    """Say what differs between two images: pins, packages, files."""
    from sm86.cli import image as cli

    _end(lambda: cli.diff(before, after, json))


@task(
    name="digest",
    help={
        "image": "tag or id",
        "out": "file for the listing that the digest is computed from; image.diff takes it for an image",
        "json": JSON,
    },
)
def image_digest(_, image, out=None, json=False):
    """Print the digest of an image's file tree."""
    from sm86.cli import image as cli

    _end(lambda: cli.digest(image, out, json))


@task(
    name="save",
    help={"image": "tag or id", "archive": "file to write; its checksum goes beside it", "dry-run": DRY_RUN},
)
def image_save(_, image, archive, dry_run=False):
    """Write an image and its checksum to files, for a rig that reaches no registry."""
    from sm86.cli import image as cli

    _end(lambda: cli.save(image, archive, dry_run))


@task(
    name="load",
    help={"archive": "file that image.save wrote, with its checksum beside it", "dry-run": DRY_RUN},
)
def image_load(_, archive, dry_run=False):
    """Load an image whose checksum is right."""
    from sm86.cli import image as cli

    _end(lambda: cli.load(archive, dry_run))


LADDER_HELP = {
    "envelopes": "names or TOML paths joined by commas, in place of the ladder's own",
    "engine": ENGINE,
    "port": PORT,
    "repeats": "how many times each rung is measured (default: the envelope's)",
    "decode-tokens": "tokens that each sequence decodes (default: the envelope's)",
    "override": "NAME=VALUE for every rung, as in docs/runbook.md; may be repeated",
    "resume": "go on with the ladder that was interrupted or failed",
    "restart": "begin anew, whatever an earlier run left",
    "png": "draw the curve into this file (default: beside the record)",
    "dry-run": "say which rungs it has, which settings have an effect and how far it is; do nothing",
    "json": JSON,
}


@task(name="sequence", iterable=["override"], help=LADDER_HELP)
def ladder_sequence(
    _,
    envelopes=None,
    engine="docker",
    port=None,
    repeats=None,
    decode_tokens=None,
    override=None,
    resume=False,
    restart=False,
    png=None,
    dry_run=False,
    json=False,
):
    """Boot, verify and measure 1, 2, 3 and 4 sequences, one envelope after another."""
    from sm86.cli.ladder import ladder

    own = {"resume": resume, "restart": restart, "png": png, "dry_run": dry_run, "json": json}
    more = (envelopes, engine, port, repeats, decode_tokens, tuple(override or ()))
    _end(lambda: ladder("sequence", *more, **own))


@task(name="context", iterable=["override"], help=LADDER_HELP)
def ladder_context(
    _,
    envelopes=None,
    engine="docker",
    port=None,
    repeats=None,
    decode_tokens=None,
    override=None,
    resume=False,
    restart=False,
    png=None,
    dry_run=False,
    json=False,
):
    """Boot, verify and measure 262K, then the experimental contexts above it, until one does not fit."""
    from sm86.cli.ladder import ladder

    own = {"resume": resume, "restart": restart, "png": png, "dry_run": dry_run, "json": json}
    more = (envelopes, engine, port, repeats, decode_tokens, tuple(override or ()))
    _end(lambda: ladder("context", *more, **own))


@task(
    name="comm",
    iterable=["override"],
    help={
        **LADDER_HELP,
        "envelopes": "one envelope, in place of the 64K server",
        "rounds": "run the matrix so often, settings interleaved (default: once)",
        "with-inert": "start the rows that have no effect here as well",
    },
)
def ladder_comm(
    _,
    envelopes=None,
    engine="docker",
    port=None,
    repeats=None,
    decode_tokens=None,
    override=None,
    rounds=None,
    with_inert=False,
    resume=False,
    restart=False,
    png=None,
    dry_run=False,
    json=False,
):
    """Run the comm matrix on the 64K server: each setting of the all-reduce against the server as it is."""
    from sm86.cli.ladder import ladder

    own = {"rounds": rounds, "with_inert": with_inert, "png": png, "dry_run": dry_run, "json": json}
    more = (envelopes, engine, port, repeats, decode_tokens, tuple(override or ()))
    _end(lambda: ladder("comm", *more, resume=resume, restart=restart, **own))


@task(
    help={
        "envelope": f"{ENVELOPE}; default: sm86-262k",
        "from": "judge these facts instead: another machine's doctor JSON, or `nvidia-smi topo -m` text; - reads stdin",
        "probe": "also try peer copies, PCIe under load and host memory (nothing else may use the GPUs)",
        "image": "do the probe's CUDA work in a container of this image",
        "bundle": "write facts and findings into this file, without names, paths and serial numbers",
        "dry-run": DRY_RUN,
        "json": JSON,
        "record": "write a record of the findings, for the report",
    }
)
def doctor(_, envelope=None, from_=None, probe=False, image=None, bundle=None, dry_run=False, json=False, record=False):
    """Examine this machine: what it is, what is wrong with it, how to mend it, where the ranks belong."""
    from sm86.cli import doctor as cli

    _end(
        lambda: cli.doctor(
            cli.DEFAULT_ENVELOPE if envelope is None else envelope, from_, probe, image, bundle, json, dry_run, record
        )
    )


@task(
    name="fetch",
    help={
        "to": "folder to fetch into (default: the envelope's below SM86_MODELS_DIR or models/)",
        "envelope": "whose checkpoint (default: the published envelopes')",
        "repository": "another repository of the hub, OWNER/NAME",
        "revision": "commit, branch or tag (default: the lock's, else main, resolved once)",
        "token-file": "file that holds the hub's token (default: HF_TOKEN, or where its login wrote it)",
        "connections": "how many files come at once (default: 4)",
        "update": "replace a lock of another revision",
        "dry-run": DRY_RUN,
        "json": JSON,
    },
)
def model_fetch(
    _,
    to=None,
    envelope=None,
    repository=None,
    revision=None,
    token_file=None,
    connections=None,
    update=False,
    dry_run=False,
    json=False,
):
    """Fetch the checkpoint from the model hub, resumable, every hash checked, and lock it."""
    from sm86.cli import model as cli

    _end(lambda: cli.fetch(to, envelope, repository, revision, token_file, connections, update, dry_run, json))


@task(
    name="check",
    auto_shortflags=False,
    help={
        "folder": "the checkpoint's folder, or a hub cache's",
        "envelope": "whose checkpoint it must be (default: the published envelopes')",
        "lock": "lock file to compare with (default: the one beside the folder)",
        "hash": "read every byte and compare its SHA-256 with the lock's; takes minutes",
        "json": JSON,
    },
)
def model_check(_, folder, envelope=None, lock=None, hash=False, json=False):
    """Judge a checkpoint from its headers, without loading it."""
    from sm86.cli import model as cli

    _end(lambda: cli.check(folder, envelope, lock, hash, json))


@task(
    name="lock",
    help={
        "folder": "the checkpoint's folder, or a hub cache's",
        "lock": "file to write (default: beside the folder)",
        "repository": "where it came from, OWNER/NAME, if the folder does not tell",
        "revision": "the commit that it is, if the folder does not tell",
        "update": "replace a lock that differs",
        "dry-run": DRY_RUN,
        "json": JSON,
    },
)
def model_lock(_, folder, lock=None, repository=None, revision=None, update=False, dry_run=False, json=False):
    """Hash every byte of a checkpoint and write its lock file."""
    from sm86.cli import model as cli

    _end(lambda: cli.lock(folder, lock, repository, revision, update, dry_run, json))


namespace = Collection(
    doctor,
    envelopes,
    render,
    build,
    lock,
    up,
    down,
    status,
    logs,
    verify,
    bench,
    compare,
    demo,
    report,
    test,
    comm,
    plan,
)
namespace.add_collection(Collection("trace", trace_read, trace_capture, trace_diff))
namespace.add_collection(Collection("image", image_check, image_digest, image_diff, image_save, image_load))
namespace.add_collection(Collection("ladder", ladder_sequence, ladder_context, ladder_comm))
namespace.add_collection(Collection("model", model_fetch, model_check, model_lock))
namespace.add_collection(Collection("probe", probe_dispatch, probe_spec))
