"""vllm.v1.spec_decode.llm_base_proposer: with SPEC_CUDAGRAPH_DEBUG=N, the graph mode of the first N draft steps."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook


def _apply(module: Any) -> None:
    from sm86.backend.diagnostics import graphs
    from sm86.backend.settings import settings

    limit = settings().spec_debug
    if not limit:
        return
    counter = graphs.DraftCounter(limit)
    proposer = module.SpecDecodeBaseProposer
    propose, determine = proposer.propose, proposer._determine_batch_execution_and_padding

    def propose_and_mark(self: Any, *args: Any, **kwargs: Any) -> Any:
        counter.begin()
        try:
            return propose(self, *args, **kwargs)
        finally:
            counter.end()

    def _determine_batch_execution_and_padding(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = determine(self, *args, **kwargs)
        tokens = kwargs.get("num_tokens", args[0] if args else 0)
        line = counter.line(result[0].name, tokens, result[1])
        if line is not None:
            print(line, flush=True)
        return result

    proposer.propose = propose_and_mark
    proposer._determine_batch_execution_and_padding = _determine_batch_execution_and_padding


HOOK = Hook(
    name="draft-dispatch",
    module="vllm.v1.spec_decode.llm_base_proposer",
    why="whether drafting replays graphs decides if speculative decoding can win; vLLM does not say",
    expects=(
        Expected("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer.propose", "4230b974ce05061f"),
        Expected(
            "vllm.v1.spec_decode.llm_base_proposer",
            "SpecDecodeBaseProposer._determine_batch_execution_and_padding",
            "89cbf409b3b646d8",
        ),
    ),
    apply=_apply,
)
