"""Recurrent layers, unrolled over time: every step is a pair of linear layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tacit.errors import ModelError
from tacit.raw.rules.registry import register
from tacit.raw.watched_layer import WatchedLayer

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, Tensor, State], State]


@register(nn.RNN, nn.LSTM, nn.GRU)
def recurrent(module: nn.RNNBase, layer: WatchedLayer, x: Any, hx: Any = None) -> tuple[Any, Any]:
    """Layers, directions, dropout between layers, packed sequences, projections."""
    lengths = None
    packed = x if isinstance(x, PackedSequence) else None
    if packed is not None:
        x, lengths = pad_packed_sequence(packed, batch_first=True)
    elif x.dim() != 3:
        raise ModelError(f"{layer.name}: the input needs a dimension of examples; got {x.dim()} dimensions.")
    elif not module.batch_first:
        x = x.transpose(0, 1)

    states = _initial(module, x, hx)
    finals: list[State] = []
    directions = 2 if module.bidirectional else 1
    for level in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"l{level}" + ("_reverse" if direction else "")
            start = tuple(s[level * directions + direction] for s in states)
            output, final = _run(module, layer, suffix, x, start, lengths, backwards=bool(direction))
            outputs.append(output)
            finals.append(final)
        x = torch.cat(outputs, -1)
        if module.dropout and level + 1 < module.num_layers:
            x = _dropout(x, module.dropout, module.training, lengths, packed)
    last = tuple(torch.stack(parts) for parts in zip(*finals, strict=True))
    state: Any = last if isinstance(module, nn.LSTM) else last[0]
    if packed is not None:
        assert lengths is not None
        return pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=packed.sorted_indices is None
        ), state
    return x if module.batch_first else x.transpose(0, 1), state


@register(nn.RNNCell, nn.LSTMCell, nn.GRUCell)
def cell(module: nn.RNNCellBase, layer: WatchedLayer, x: Tensor, hx: Any = None) -> Any:
    """One step."""
    if x.dim() != 2:
        raise ModelError(f"{layer.name}: the input needs a dimension of examples; got {x.dim()} dimensions.")
    count = 2 if isinstance(module, nn.LSTMCell) else 1
    zeros = x.new_zeros(len(x), module.hidden_size)
    start: State = (zeros,) * count if hx is None else (tuple(hx) if count == 2 else (hx,))
    gates = layer.recorder.linear(x, module.weight_ih, module.bias_ih)
    hidden = layer.recorder.linear(start[0], module.weight_hh, module.bias_hh)
    after = _cell(module)(gates, hidden, start)
    return after if count == 2 else after[0]


def _run(
    module: nn.RNNBase,
    layer: WatchedLayer,
    suffix: str,
    x: Tensor,
    state: State,
    lengths: Tensor | None,
    *,
    backwards: bool,
) -> tuple[Tensor, State]:
    """One layer in one direction over (examples, time, features)."""
    weight_x, weight_h = getattr(module, f"weight_ih_{suffix}"), getattr(module, f"weight_hh_{suffix}")
    bias_x, bias_h = (
        getattr(module, f"bias_{n}_{suffix}", None) if module.bias else None for n in ("ih", "hh")
    )
    gates = layer.recorder.linear(x, weight_x, bias_x)
    projection = getattr(module, f"weight_hr_{suffix}") if module.proj_size else None
    step = _cell(module)
    outputs: list[Tensor] = [x] * x.shape[1]
    for t in reversed(range(x.shape[1])) if backwards else range(x.shape[1]):
        hidden = layer.recorder.linear(state[0], weight_h, bias_h)
        after = step(gates[:, t], hidden, state)
        if projection is not None:
            after = (layer.recorder.linear(after[0], projection, None), *after[1:])
        if lengths is not None:
            running = (lengths > t).to(x.device)[:, None]
            after = tuple(torch.where(running, new, old) for new, old in zip(after, state, strict=True))
        state = after
        outputs[t] = state[0]
    return torch.stack(outputs, 1), state


def _dropout(
    x: Tensor, p: float, training: bool, lengths: Tensor | None, packed: PackedSequence | None
) -> Tensor:
    """Dropout in the layout of the layer's own kernel, so that equal random states give equal masks."""
    if lengths is None or packed is None:
        return F.dropout(x.transpose(0, 1).contiguous(), p, training).transpose(0, 1)
    flat = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=packed.sorted_indices is None)
    kept = flat._replace(data=F.dropout(flat.data, p, training))
    return pad_packed_sequence(kept, batch_first=True)[0]


def _initial(module: nn.RNNBase, x: Tensor, hx: Any) -> State:
    count = 2 if isinstance(module, nn.LSTM) else 1
    if hx is not None:
        return tuple(hx) if count == 2 else (hx,)
    layers = module.num_layers * (2 if module.bidirectional else 1)
    zeros = x.new_zeros(layers, len(x), module.hidden_size)
    return (x.new_zeros(layers, len(x), module.proj_size) if module.proj_size else zeros, zeros)[:count]


def _cell(module: nn.Module) -> Cell:
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return _lstm
    if isinstance(module, nn.GRU | nn.GRUCell):
        return _gru
    return _relu if getattr(module, "nonlinearity", "tanh") == "relu" else _tanh


def _lstm(gates: Tensor, hidden: Tensor, state: State) -> State:
    i, f, g, o = (gates + hidden).chunk(4, -1)
    memory = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory


def _gru(gates: Tensor, hidden: Tensor, state: State) -> State:
    r, z, n = gates.chunk(3, -1)
    hr, hz, hn = hidden.chunk(3, -1)
    keep = torch.sigmoid(z + hz)
    new = torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return ((1 - keep) * new + keep * state[0],)


def _tanh(gates: Tensor, hidden: Tensor, state: State) -> State:
    return (torch.tanh(gates + hidden),)


def _relu(gates: Tensor, hidden: Tensor, state: State) -> State:
    return (torch.relu(gates + hidden),)
