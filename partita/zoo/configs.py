"""Published sizes of language models, as arguments of their transformers configs."""

from __future__ import annotations

from typing import Final

# name: (config class, its arguments, sequence length, samples of a minibatch)
CONFIGS: Final[dict[str, tuple[str, dict[str, int | float | bool], int, int]]] = {
    # Radford et al., 2019
    "gpt2-small": ("GPT2Config", {"n_embd": 768, "n_layer": 12, "n_head": 12}, 1024, 8),
    "gpt2-medium": ("GPT2Config", {"n_embd": 1024, "n_layer": 24, "n_head": 16}, 1024, 8),
    "gpt2-xl": ("GPT2Config", {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 1024, 8),
    # Brown et al., 2020, table 2.1
    "gpt3-175b": ("GPT2Config", {"n_embd": 12288, "n_layer": 96, "n_head": 96, "n_positions": 2048}, 2048, 1536),
    # Grattafiori et al., 2024, table 3
    "llama3-8b": (
        "LlamaConfig",
        {
            "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
        },
        8192, 16,
    ),
    "llama3-70b": (
        "LlamaConfig",
        {
            "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192,
        },
        8192, 16,
    ),
    # Devlin et al., 2019
    "bert-large": (
        "BertConfig",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        512, 32,
    ),
    "llama-5m": (
        "LlamaConfig",
        {
            "vocab_size": 256, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
            "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 128,
        },
        128, 16,
    ),
    "transformer-moe": (
        "MixtralConfig",
        {
            "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
            "num_local_experts": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2,
            "max_position_embeddings": 128,
        },
        128, 16,
    ),
}  # fmt: skip
ON_TEXT: Final = ("llama-5m", "transformer-moe")  # these learn the library's text, the others synthetic tokens
