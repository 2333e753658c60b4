"""The benchmarked tasks as functions without arguments, which is how the peers name them."""

from __future__ import annotations

from functools import partial

from partita import api

convnet_8m = partial(api.load, "convnet-8m")
digits_cnn = partial(api.load, "digits-cnn")
bytes_gpt = partial(api.load, "bytes-gpt")
llama_5m = partial(api.load, "llama-5m")
vgg16_32 = partial(api.load, "vgg16-32")
resnet50 = partial(api.load, "resnet50")
lstm = partial(api.load, "lstm")
