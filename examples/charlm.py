"""A character language model that fits on one page: text, forward and backward pass, Adam, sampling.

Plain NumPy, or CuPy through the same calls (`xp` is whichever module holds the arrays). Nothing here knows about other
ranks: train_lm.py makes the training parallel.
"""

import math
import sysconfig
from pathlib import Path

import numpy as np

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
UNKNOWN = len(ALPHABET)  # the symbol of every byte that is not in the alphabet
SYMBOLS = len(ALPHABET) + 1

HELD_OUT_EVERY = 10  # one file in ten is kept from training


def array_module(index):
    """CuPy, on the GPU number `index` (modulo their number), when it is installed and sees one; NumPy otherwise."""
    try:
        import cupy
    except ImportError:
        return np
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return np
    cupy.cuda.Device(index % count).use()
    return cupy


def to_host(array):
    """The array as a NumPy array: itself, or a copy of one that is on a GPU."""
    return array if isinstance(array, np.ndarray) else array.get()


def encode(data):
    """Symbols (uint8 array) of a bytes object."""
    table = np.full(256, UNKNOWN, np.uint8)
    table[list(ALPHABET.encode())] = np.arange(UNKNOWN)
    return table[np.frombuffer(data, np.uint8)]


def decode(symbols):
    """The text of a sequence of symbols; unknown ones are shown as '?'."""
    return "".join((ALPHABET + "?")[s] for s in symbols)


def read_text():
    """The standard library's modules, in order of name: symbols to train on, symbols held out (uint8 arrays)."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    held_out = files[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    training = [file for file in files if file not in held_out]
    return tuple(encode(b"\n".join(file.read_bytes() for file in part)) for part in (training, held_out))


def examples(text, positions, context):
    """(contexts, targets): the `context` symbols before each position, and the symbol there."""
    return text[positions[:, None] + np.arange(-context, 0)], text[positions]


class Model:
    """An embedding of the last `context` symbols, one hidden layer, and the scores of the next symbol.

    All parameters are views of one flat array, and so are their gradients: an optimiser step is one line, and an
    all-reduce of the gradient is one call. The gradient's array has one element more, for the loss.

    params : flat array of `size` elements
    grad   : flat array of `size` + 1 elements; the last is the loss in nats
    """

    def __init__(self, context, embed, hidden, seed, dtype=np.float32, xp=np):
        self.xp, self.context, self.embed, self.seed = xp, context, embed, seed
        self.shapes = {
            "embedding": (SYMBOLS, embed),
            "hidden": (context * embed, hidden),
            "hidden_bias": (hidden,),
            "output": (hidden, SYMBOLS),
            "output_bias": (SYMBOLS,),
        }
        self.size = sum(math.prod(shape) for shape in self.shapes.values())
        self.params = xp.zeros(self.size, dtype)
        self.grad = xp.zeros(self.size + 1, dtype)
        self.mean, self.square = xp.zeros_like(self.params), xp.zeros_like(self.params)
        self.w, self.g = self._views(self.params), self._views(self.grad)

        # The output starts small, so that the first loss is close to log(SYMBOLS): no symbol is preferred yet.
        scales = {"embedding": 1.0, "hidden": math.sqrt(2 / (context * embed)), "output": 0.1 / math.sqrt(hidden)}
        random = np.random.default_rng(seed)
        for name, scale in scales.items():
            self.w[name][:] = xp.asarray(random.normal(0, scale, self.shapes[name]))

    def _views(self, flat):
        views, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            views[name] = flat[start:stop].reshape(shape)
            start = stop
        return views

    def _forward(self, contexts):
        inputs = self.w["embedding"][contexts].reshape(len(contexts), self.shapes["hidden"][0])
        hidden = self.xp.maximum(inputs @ self.w["hidden"] + self.w["hidden_bias"], 0)
        scores = hidden @ self.w["output"] + self.w["output_bias"]
        scores -= scores.max(axis=1, keepdims=True)
        return inputs, hidden, scores

    def loss(self, contexts, targets, total):
        """Sum of -log p(target) in nats over these examples, divided by `total`."""
        contexts, targets = self.xp.asarray(contexts), self.xp.asarray(targets)
        _, _, scores = self._forward(contexts)
        log_sum = self.xp.log(self.xp.exp(scores).sum(axis=1))
        return float((log_sum - scores[self.xp.arange(len(targets)), targets]).sum()) / total

    def backward(self, contexts, targets, total):
        """Fill `grad` with the gradient and the value of `loss(contexts, targets, total)`."""
        xp, w, g = self.xp, self.w, self.g
        contexts, targets = xp.asarray(contexts), xp.asarray(targets)
        rows = xp.arange(len(targets))
        inputs, hidden, scores = self._forward(contexts)
        slope = xp.exp(scores)
        row_sum = slope.sum(axis=1, keepdims=True)
        self.grad[-1] = (xp.log(row_sum[:, 0]) - scores[rows, targets]).sum() / total

        slope /= row_sum
        slope[rows, targets] -= 1
        slope /= total
        xp.matmul(hidden.T, slope, out=g["output"])
        slope.sum(axis=0, out=g["output_bias"])

        slope = slope @ w["output"].T
        slope *= hidden > 0
        xp.matmul(inputs.T, slope, out=g["hidden"])
        slope.sum(axis=0, out=g["hidden_bias"])

        # Rows of the embedding are used many times. Adding them up as a product with one-hot rows is faster than
        # add.at and, unlike it, adds in the same order in every run on a GPU.
        slope = (slope @ w["hidden"].T).reshape(contexts.size, self.embed)
        one_hot = xp.zeros((contexts.size, SYMBOLS), slope.dtype)
        one_hot[xp.arange(contexts.size), contexts.ravel()] = 1
        xp.matmul(one_hot.T, slope, out=g["embedding"])

    def adam_step(self, step, rate):
        """Move the parameters along `grad`; `step` counts from 1. Source: Kingma and Ba, arXiv:1412.6980."""
        grad, decay_mean, decay_square = self.grad[:-1], 0.9, 0.98
        self.mean += (1 - decay_mean) * (grad - self.mean)
        self.square += (1 - decay_square) * (grad * grad - self.square)
        scale = self.xp.sqrt(self.square / (1 - decay_square**step))
        scale += 1e-8
        self.params -= rate / (1 - decay_mean**step) * self.mean / scale

    def sample(self, prompt, count, temperature, seed):
        """The prompt, continued by `count` characters drawn at this temperature."""
        random = np.random.default_rng(seed)
        symbols = list(encode(prompt.encode()))
        for _ in range(count):
            window = ([0] * self.context + symbols)[-self.context :]
            _, _, scores = self._forward(self.xp.asarray([window]))
            weights = self.xp.exp(scores[0] / temperature)
            cumulative = (weights / weights.sum()).cumsum()
            symbols.append(min(int((cumulative < random.random()).sum()), SYMBOLS - 1))
        return decode(symbols)
