"""The oracle's own work: golden answers and the invariance certificate, kept between runs."""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tocsin.chaos.load import golden_requests, load_prompts
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import builtin_experiments, load_experiment
from tocsin.core.system import GoldenAnswer
from tocsin.engine.certificate import certify
from tocsin.engine.golden import GoldenPrompt, golden
from tocsin.engine.weights import load, prepare
from tocsin.ray_jobs.options import DTYPES, LOGITS_TOLD_EVERY, ServeOptions
from tocsin.ray_jobs.prompting import Prompting


def cache_folder() -> Path:
    """Where they are kept: `$TOCSIN_CACHE`, or below the user's own cache."""
    chosen = os.environ.get("TOCSIN_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "tocsin"


def options_of(experiment: Experiment, path: Path) -> ServeOptions:
    """How an experiment wants its model served."""
    system = experiment.system
    return ServeOptions(
        path=str(path),
        model=system.model,
        dtype=system.dtype,
        profile=system.profile,
        replicas=system.replicas,
        slots=system.slots,
        pages=system.pages,
        page_size=system.page_size,
        max_length=system.max_length,
        logits_told_every=LOGITS_TOLD_EVERY,
    )


def golden_answers(
    options: ServeOptions, bodies: Mapping[str, Mapping[str, Any]], cache: Path
) -> dict[str, GoldenAnswer]:
    """Golden answers of chat bodies, by prompt id."""
    torch.set_num_threads(options.threads)
    model, tokenizer = load(Path(options.path), DTYPES[options.dtype])
    facts: Any = model.config
    prompting = Prompting(tokenizer, int(facts.vocab_size), options.max_length)
    prompts = [
        GoldenPrompt(
            prompt_id, prompting.chat(body["messages"]), body["max_tokens"], prompting.stop_ids
        )
        for prompt_id, body in bodies.items()
    ]
    return golden(model, tokenizer, prompts, options.engine_config(), cache / "golden")


def certificate(options: ServeOptions, cache: Path) -> dict[str, Any]:
    """The certificate of this engine on this machine and build."""
    torch.set_num_threads(options.threads)
    facts = [options.path, options.dtype, options.slots, options.page_size, options.max_length]
    isa = torch.backends.cpu.get_cpu_capability()
    build = [options.threads, torch.__version__, platform.machine(), isa]
    key = "-".join(str(part).replace(os.sep, "_") for part in [*facts, *build])
    kept = cache / "certificates" / f"{key}.json"
    if kept.is_file():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    model, _ = load(Path(options.path), DTYPES[options.dtype])
    taken = certify(model, options.engine_config())
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(taken), encoding="utf-8")
    part.replace(kept)
    return taken


def main(names: Sequence[str]) -> None:
    """Prepare what some experiments are judged by (all built-in ones), so that runs need not."""
    cache = cache_folder()
    for name in names or builtin_experiments():
        experiment = load_experiment(name)
        options = options_of(experiment, prepare(experiment.system.model))
        work = experiment.workload
        prompts = load_prompts(work.prompts, canaries=work.canaries)
        wanted = {one.prompt_id: one.body for one in golden_requests(experiment, prompts)}
        answers = golden_answers(options, wanted, cache)
        taken = certificate(options, cache)
        bits = "bit-exact" if taken["bit_exact"] else "judged by margins"
        sys.stdout.write(f"oracle: {name}: {len(answers)} golden answers, {bits}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
