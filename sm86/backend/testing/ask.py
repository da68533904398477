"""Ask a running server for greedy tokens and log-probs of random prompts, alone and together; write a run file.

    python -m sm86.backend.testing.ask http://localhost:8000 RUN.json --lengths 40,300,3000 --generate 48

A run file is a list of {name, prompt, generated, prompt_logprobs, logprobs}; `parity` judges it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sm86.backend.testing.budget import Budget, add_option, budget_of
from sm86.errors import CouldNotRun
from sm86.files import write_atomic

SEED = 7


def prompts(lengths: list[int], vocabulary: int) -> list[list[int]]:
    """Random prompts, the same for the same lengths and vocabulary."""
    source = random.Random(SEED)
    return [[source.randrange(vocabulary) for _ in range(length)] for length in lengths]


def complete(
    url: str, model: str, prompt: list[int], generate: int, score_prompt: bool, timeout: float
) -> dict[str, Any]:
    """One greedy completion by token ids, as an entry of a run file without its name."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": generate,
        "temperature": 0,
        "logprobs": 1,
        "ignore_eos": True,
        "return_tokens_as_token_ids": True,
    }
    if score_prompt:
        body["prompt_logprobs"] = 1
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        choice = json.load(response)["choices"][0]
    scored = choice.get("prompt_logprobs")
    return {
        "prompt": prompt,
        "generated": [int(token.split(":")[1]) for token in choice["logprobs"]["tokens"]],
        "logprobs": choice["logprobs"]["token_logprobs"],
        "prompt_logprobs": [entry[str(t)]["logprob"] for entry, t in zip(scored[1:], prompt[1:], strict=True)]
        if scored
        else None,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.backend.testing.ask", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("run", type=Path)
    parser.add_argument("--lengths", default="40,300,3000")
    parser.add_argument("--generate", type=int, default=48)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=1, help="ask each prompt alone this many times")
    parser.add_argument("--batch", type=int, default=4, help="prompts asked together; 0: none")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one answer")
    add_option(parser)
    given = parser.parse_args(arguments)
    try:
        budget = budget_of(given)
        return _ask(given, budget)
    except CouldNotRun as fault:
        print(f"{fault.what}\n{fault.mend}", file=sys.stderr)
        return fault.exit_code


def _ask(given: argparse.Namespace, budget: Budget) -> int:
    """Everything, while the budget lasts; the run file is written after every answer. Raises CouldNotRun."""

    def timeout() -> float:
        return max(1.0, min(given.timeout, budget.left()))

    with urllib.request.urlopen(f"{given.url}/v1/models", timeout=30) as response:
        model = json.load(response)["data"][0]["id"]
    asked = prompts([int(length) for length in given.lengths.split(",")], given.vocabulary)
    run = []
    for prompt in asked:
        for again in range(given.repeat):
            begin = time.perf_counter()
            name = f"alone-{len(prompt)}" + (f"-{again}" if again else "")
            if not budget.allows(1.0):
                raise CouldNotRun(f"{name} and what follows: {budget.words()}", f"{given.run} holds what was answered")
            answer = complete(given.url, model, prompt, given.generate, again == 0, timeout())
            print(f"{name}: {time.perf_counter() - begin:.2f} s", flush=True)
            run.append({"name": name, **answer})
            write_atomic(given.run, json.dumps(run))
    if given.batch and not budget.allows(1.0):
        raise CouldNotRun(f"the batch: {budget.words()}", f"{given.run} holds what was answered")
    if given.batch:
        together = [asked[number % len(asked)] for number in range(given.batch)]
        begin = time.perf_counter()
        with ThreadPoolExecutor(given.batch) as pool:
            answers = list(
                pool.map(lambda p: complete(given.url, model, p, given.generate, False, timeout()), together)
            )
        print(f"batch of {given.batch}: {time.perf_counter() - begin:.2f} s", flush=True)
        run += [{"name": f"batch-{len(p)}", **a} for p, a in zip(together, answers, strict=True)]
    write_atomic(given.run, json.dumps(run))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
