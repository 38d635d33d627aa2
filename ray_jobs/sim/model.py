"""What a simulated replica serves: a tiny random decoder, a real model, or made-up answers."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tocsin.chaos.spec import Experiment
from tocsin.core.draw import draw_below, draw_u64, draw_unit
from tocsin.core.system import GoldenAnswer
from tocsin.engine.certificate import certify
from tocsin.engine.golden import GoldenPrompt, golden
from tocsin.ray_jobs.options import DTYPES, ServeOptions
from tocsin.ray_jobs.prompting import Prompting

TINY, STUB = "tiny", "stub"
_EOS = 256
_TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
_STUB_VOCAB = 1 << 30


@dataclass(slots=True)
class SimModel:
    """A model with its tokenizer, and what was found out about it: kept from run to run.

    Attributes:
        model: never served itself, each replica has a copy; None: answers are made up.
    """

    name: str
    tokenizer: Any
    vocab_size: int
    model: nn.Module | None = None
    _golden: dict[Any, GoldenAnswer] = field(default_factory=dict)
    _certificates: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def copy(self) -> nn.Module:
        """A copy for one replica, which faults may spoil.

        Raises:
            ValueError: there is no model.
        """
        if self.model is None:
            raise ValueError("sim: the stub has no model to copy")
        return copy.deepcopy(self.model)

    def prompting(self, options: ServeOptions) -> Prompting:
        """From texts to token ids."""
        return Prompting(self.tokenizer, self.vocab_size, options.max_length)

    def golden(
        self, options: ServeOptions, bodies: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, GoldenAnswer]:
        """Right answers of chat bodies, by prompt id."""
        prompting, shape = self.prompting(options), options.engine_config()
        asked = [
            GoldenPrompt(
                name, prompting.chat(body["messages"]), body["max_tokens"], prompting.stop_ids
            )
            for name, body in bodies.items()
        ]
        if self.model is None:
            return {one.prompt_id: self._made_up(one) for one in asked}
        keys = {one.prompt_id: (one, shape) for one in asked}
        missing = [one for one in asked if keys[one.prompt_id] not in self._golden]
        if missing:
            for name, answer in golden(self.copy(), self.tokenizer, missing, shape).items():
                self._golden[keys[name]] = answer
        return {name: self._golden[key] for name, key in keys.items()}

    def certificate(self, options: ServeOptions) -> dict[str, Any]:
        """Whether answers have the same bits in any company."""
        if self.model is None:
            return {"bit_exact": True, "tau": 0.0, "cases": []}
        shape = options.engine_config()
        if shape not in self._certificates:
            self._certificates[shape] = certify(self.copy(), shape)
        return dict(self._certificates[shape])

    def _made_up(self, one: GoldenPrompt) -> GoldenAnswer:
        tokens = tuple(made_up_token(one.prompt_ids, i) for i in range(one.max_new_tokens))
        margins = tuple(1.0 + draw_unit(0, one.prompt_ids[0], "margin", i) for i in tokens)
        text = self.tokenizer.decode(tokens)
        return GoldenAnswer(one.prompt_id, tokens, margins, tokens, text, "length")


def made_up_token(prompt_ids: tuple[int, ...], index: int) -> int:
    """The token that the stub answers a prompt with: it depends on the prompt alone."""
    return draw_below(_STUB_VOCAB - 1, 0, *prompt_ids, index)


def sim_model(name: str, experiment: Experiment) -> SimModel:
    """The model of a simulation.

    Args:
        name: `tiny`, `stub`, or what `tocsin serve --model` takes.

    Raises:
        EnvironmentFault, SpecError: there is no such model.
    """
    if name == STUB:
        return SimModel(STUB, StubTokenizer(), _STUB_VOCAB)
    if name == TINY:
        model = tiny_model().to(DTYPES[experiment.system.dtype])
        return SimModel(TINY, bytes_tokenizer(), _EOS + 1, model)
    from tocsin.engine.weights import load, prepare

    loaded, tokenizer = load(prepare(name), DTYPES[experiment.system.dtype])
    facts: Any = loaded.config
    return SimModel(name, tokenizer, int(facts.vocab_size), loaded)


def tiny_model() -> nn.Module:
    """Two layers, hidden size 64, 257 tokens; the same weights each time.

    Untied and of large weights, so that its answers depend on all that it reads.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        config = LlamaConfig(
            vocab_size=_EOS + 1,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            initializer_range=0.3,
            eos_token_id=_EOS,
            bos_token_id=None,
            pad_token_id=None,
        )
        model: nn.Module = LlamaForCausalLM(config)
        return model.eval()


def bytes_tokenizer() -> Any:
    """Ids 0 to 255 are bytes (in the order of GPT-2's alphabet), 256 ends an answer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    fast = make(tokenizer_object=core, eos_token="<|im_end|>")
    fast.chat_template = _TEMPLATE
    return fast


class StubTokenizer:
    """One token a text; decoding writes token ids down."""

    eos_token_id = _STUB_VOCAB - 1

    def apply_chat_template(self, messages: list[dict[str, str]], **how: Any) -> str:
        """The last message."""
        return messages[-1]["content"]

    def __call__(self, text: str, **how: Any) -> dict[str, list[int]]:
        """A number of 30 bits drawn from the text; nothing for nothing."""
        ids = [draw_u64(0, "prompt", text) % (_STUB_VOCAB - 1)] if text else []
        return {"input_ids": ids}

    def decode(self, tokens: Any, **how: Any) -> str:
        """` 12 7`, for example."""
        return "".join(f" {token}" for token in tokens)
