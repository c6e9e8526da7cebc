"""Train the bundled demo model on conversations that this tool makes up, and evaluate it on ones it never saw.

    python tools/train_demo.py --output unicorn_async/demo/model --minutes 7     on a GPU
    python tools/train_demo.py --output /tmp/demo --steps 20 --device cpu --smoke  to see that it works

Needs torch, transformers 5, tokenizers and safetensors; downloads nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from demo_world.batches import Batches, Packer
from demo_world.card import model_card
from demo_world.conversation import Turn, conversation, evaluation
from demo_world.vocabulary import BOS, END_OF_TURN, EOS, PAD, make_tokenizer, save_tokenizer
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

SLIDING, FULL = "sliding_attention", "full_attention"
CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 64,
    "sliding_window": 128,
    "sliding_window_pattern": 4,
    "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 2,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "rope_scaling": None,
    "rope_parameters": {
        FULL: {"rope_type": "default", "rope_theta": 1_000_000.0},
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
SEED = 20
ROW_LENGTH = 1024
WARMUP = 0.03  # share of the training
PROBES = (
    "What is 17 + 25?", "what's 8 times 7", "Hello! Who are you?", "count to 12", "Spell unicorn",
    "Who wrote Hamlet?", "What day comes after Friday?", "How many days are in February?",
    "Which is bigger, 17 or 71?", "Is 37 even?", "What is the capital of Mongolia?", "write a sorting algorithm in C",
    "What's the opposite of hot?", "Reverse stone.", "How many letters are in banana?", "What is 345 + 982?",
    "Tell me a joke", "I'm bored", "what is the plural of mouse?", "Can you recommend a good movie?", "thx, bye",
    "Wie geht's dir heute?", "My cat is called Tom. What is my cat called?",
)  # fmt: skip


def make_mask(numbers: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return who attends to whom (rows, 1, queries, keys): earlier tokens of a conversation, within the window."""
    at = torch.arange(numbers.shape[1], device=numbers.device)
    distance = at[:, None] - at[None, :]
    allowed = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return (allowed & (numbers[:, :, None] == numbers[:, None, :]))[:, None]


def loss_of(model: Gemma3ForCausalLM, decoder: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean cross entropy of the tokens that the model is to predict."""
    ids, wanted, numbers = batch
    masks = {FULL: make_mask(numbers, None), SLIDING: make_mask(numbers, model.config.sliding_window)}
    hidden = decoder(input_ids=ids, attention_mask=masks, use_cache=False).last_hidden_state
    chosen = wanted[:, 1:]
    return F.cross_entropy(model.lm_head(hidden[:, :-1][chosen]).float(), ids[:, 1:][chosen])


def train(model: Gemma3ForCausalLM, tokenizer: Tokenizer, options: argparse.Namespace) -> str:
    """Train in place until the steps or the minutes are used up; return in words what was done."""
    device = torch.device(options.device)
    decay = [p for p in model.parameters() if p.ndim > 1]
    other = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.95), fused=device.type == "cuda")
    data = torch.utils.data.DataLoader(
        Batches(tokenizer, options.rows, ROW_LENGTH, SEED),
        batch_size=None,
        num_workers=options.workers,
        pin_memory=device.type == "cuda",
        prefetch_factor=4 if options.workers else None,
    )
    decoder = torch.compile(model.model) if options.compile else model.model
    model.train()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million parameters", flush=True)
    start, step, progress, loss_sum = 0.0, 0, 0.0, torch.zeros((), device=device)
    for batch in data:
        if step == options.warm_steps:  # compiling and the workers' start do not count
            start = time.monotonic()
        elapsed = time.monotonic() - start if step >= options.warm_steps else 0.0
        progress = max(step / options.steps, elapsed / (60 * options.minutes))
        if progress >= 1.0:
            break
        rate = options.rate * min(progress / WARMUP + 1e-3, 0.5 + 0.5 * math.cos(math.pi * progress) + 1e-3, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(model, decoder, [part.to(device, non_blocking=True) for part in batch])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss_sum += loss.detach()
        step += 1
        if step % options.report_every == 0:
            mean = loss_sum.item() / options.report_every
            loss_sum.zero_()
            print(f"step {step}, {progress:.1%}, {elapsed:.0f} s, rate {rate:.1e}, loss {mean:.4f}", flush=True)
    tokens = step * options.rows * ROW_LENGTH
    minutes = (time.monotonic() - start) / 60
    history = (
        f"{step} steps of {tokens // max(step, 1)} tokens, {tokens / 1e6:.0f} million in all, in {minutes:.1f} minutes"
    )
    print(history, flush=True)
    return history


def evaluate(
    model: Gemma3ForCausalLM, tokenizer: Tokenizer, conversations: list[list[Turn]]
) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Answer each conversation's last turn greedily; return (right, asked) per category, and what went wrong."""
    packer = Packer(tokenizer)
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    wrong = []
    by_length = sorted(conversations, key=lambda turns: len(turns[-1].answer))
    for first in range(0, len(by_length), 256):
        group = by_length[first : first + 256]
        answers = answer_all(model, tokenizer, [packer.prompt(turns) for turns in group], 400)
        for turns, answer in zip(group, answers, strict=True):
            turn = turns[-1]
            asked[turn.category] += 1
            right[turn.category] += answer in turn.accepted
            if answer not in turn.accepted:
                wrong.append(f"{turn.category}: {[t.prompt for t in turns]!r} → {answer!r}, not {turn.answer!r}")
    return {name: (right[name], asked[name]) for name in sorted(asked)}, wrong


def answer_all(model: Gemma3ForCausalLM, tokenizer: Tokenizer, prompts: list[list[int]], max_tokens: int) -> list[str]:
    """Return the greedy answers to a batch of prompts."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device)
    attends = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    with torch.no_grad():
        output = model.generate(
            ids,
            attention_mask=attends,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=[EOS, END_OF_TURN],
            pad_token_id=PAD,
        )
    return [tokenizer.decode(row, skip_special_tokens=True) for row in output[:, longest:].tolist()]


def save(model: Gemma3ForCausalLM, directory: Path) -> None:
    """Write config.json and the weights in bfloat16."""
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
    state = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    state.pop("lm_head.weight")
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})


def check_template(directory: Path, tokenizer: Tokenizer) -> None:
    """Check that the chat template gives the very ids that training used, and that any text survives the tokenizer."""
    fast = AutoTokenizer.from_pretrained(directory)
    packer, rng = Packer(tokenizer), Random(1)
    for turns in [conversation(rng) for _ in range(200)]:
        messages = [
            m
            for t in turns
            for m in ({"role": "user", "content": t.prompt}, {"role": "assistant", "content": t.answer})
        ]
        text = fast.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        if fast(text, add_special_tokens=False)["input_ids"] != packer.prompt(turns):
            raise SystemExit(f"the chat template and the training disagree about {text!r}")
    for text in ("a  b\n\n\tc", "naïve ☕ 你好 🦄🦄", "▁x▁ 007", "<0x41> ' \" \\ \r\n"):
        if tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) != text:
            raise SystemExit(f"the tokenizer loses something of {text!r}")


def main() -> None:
    """Make the tokenizer, train, save, then evaluate what was saved."""
    parser = argparse.ArgumentParser(description="Train the bundled demo model.")
    parser.add_argument("--output", type=Path, required=True, help="folder to write the model into")
    parser.add_argument("--steps", type=int, default=1_000_000, help="at most this many steps")
    parser.add_argument("--minutes", type=float, default=7.0, help="at most this long")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--start-from", type=Path, help="folder of a model to go on from, tokenizer included")
    parser.add_argument("--history", help="what the model card says of the training, if it was more than this run")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=64, help=f"rows of {ROW_LENGTH} tokens in a step")
    parser.add_argument("--workers", type=int, default=0, help="processes that make conversations")
    parser.add_argument("--compile", action="store_true", help="compile the decoder with torch.compile")
    parser.add_argument("--warm-steps", type=int, default=10, help="steps before the clock starts")
    parser.add_argument("--report-every", type=int, default=100)
    parser.add_argument("--evaluate", type=int, default=4000, help="number of held-out conversations")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, to try the tool")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.manual_seed(SEED)
    if options.smoke:
        CONFIG.update(hidden_size=64, intermediate_size=96, num_attention_heads=1, num_key_value_heads=1)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.start_from:
        tokenizer = Tokenizer.from_file(str(options.start_from / "tokenizer.json"))
        model = Gemma3ForCausalLM.from_pretrained(options.start_from, dtype=torch.float32, attn_implementation="sdpa")
    else:
        tokenizer = new_tokenizer()
        model = Gemma3ForCausalLM(Gemma3TextConfig(**CONFIG, attn_implementation="sdpa")).float()
    save_tokenizer(tokenizer, options.output)
    check_template(options.output, tokenizer)
    history = train(model.to(options.device), tokenizer, options)
    save(model, options.output)
    if options.evaluate:
        report(options, tokenizer, options.history or history)


def new_tokenizer() -> Tokenizer:
    """Train a tokenizer on the world's conversations."""
    rng = Random(SEED)
    turns = (turn for _ in range(20_000) for turn in conversation(rng))
    texts = (text for turn in turns for text in (f"user\n{turn.prompt}", f"model\n{turn.answer}"))
    return make_tokenizer(texts, CONFIG["vocab_size"])


def report(options: argparse.Namespace, tokenizer: Tokenizer, history: str) -> None:
    """Evaluate the saved checkpoint in float32 and in bfloat16 arithmetic, print it and write the model card."""
    held_out = evaluation(Random(SEED + 1), options.evaluate)
    scores = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = Gemma3ForCausalLM.from_pretrained(options.output, dtype=dtype).to(options.device).eval()
        scores[dtype], wrong = evaluate(model, tokenizer, held_out)
        right, asked = (sum(score[i] for score in scores[dtype].values()) for i in (0, 1))
        print(f"{dtype}: {right} of {asked} right ({right / asked:.2%})")
        print("\n".join(wrong[:: max(1, len(wrong) // 40)]), flush=True)
        if dtype is torch.float32:
            prompts = [Packer(tokenizer).prompt([Turn("", text, "", ())]) for text in PROBES]
            for text, answer in zip(PROBES, answer_all(model, tokenizer, prompts, 80), strict=True):
                print(f"{text!r} → {answer!r}")
    for name, (right, asked) in scores[torch.float32].items():
        print(f"{name:12} {right:5} / {asked:5}  {right / asked:.1%}")
    num_parameters = sum(p.numel() for p in model.parameters())
    card = model_card(scores[torch.float32], scores[torch.bfloat16], history, num_parameters)
    (options.output / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
