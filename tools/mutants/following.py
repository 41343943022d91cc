"""Planted bugs in how parameters without a rule are followed, and in what a device would notice."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

FOLLOWING, REPLAY, INSPECTOR = "raw/following.py", "raw/replay.py", "raw/inspector.py"
FOLLOWED = ["tests/raw/test_following.py"]
DEVICE = ["tests/device/test_device.py"]

FOLLOWING_MUTANTS = (
    Mutant(
        "replayed with other draws",
        "An operation that draws is run again for every example, with draws that the forward pass never made.",
        [Edit(REPLAY, "if drawn_since(before):", "if False:")],
        FOLLOWED,
    ),
    Mutant(
        "a new path is trusted",
        "A pass that takes a path no look has met is summed without being compared with autograd.",
        [Edit(INSPECTOR, "        self.check(chunk, extended)\n", "")],
        FOLLOWED,
    ),
    Mutant(
        "shared values are not carried back",
        "Gradients of what was made of parameters never reach them: a normalised weight does not learn.",
        [Edit(FOLLOWING, "        self._uses[shared].append(use)\n", "")],
        FOLLOWED,
    ),
    Mutant(
        "masses of a few coordinates by squares",
        "The terms of a masked gradient are bounded by the root of their squares, which is less than their sum.",
        [
            Edit(
                "raw/gradients/linear.py",
                "mass = lengths.view(self.a.shape[:2]).sum(1)",
                "mass = lengths.view(self.a.shape[:2]).square().sum(1).sqrt()",
            )
        ],
        FOLLOWED,
    ),
    Mutant(
        "active places stay on the host",
        "On a device the places of active coordinates are on the CPU: every support of single coordinates fails.",
        [
            Edit(
                "raw/gradients/linear.py",
                "yield rows, block.index_on(device)[low:high] - rows.start * inputs",
                "yield rows, block.index[low:high] - rows.start * inputs",
            )
        ],
        DEVICE,
    ),
    Mutant(
        "a look stacks zeros of the host with norms of a device",
        "On a device, sizes of gradients are put together with a number on the CPU: no model can be looked at.",
        [
            Edit(
                "raw/agreement.py",
                "torch.stack([gradient.norm().double().cpu() for gradient in expected])",
                "torch.stack([torch.zeros(()), *(gradient.norm() for gradient in expected)])",
            )
        ],
        DEVICE,
    ),
    Mutant(
        "weights of a look stay on the host",
        "On a device the probe multiplies gradients by numbers on the CPU: no model can be looked at.",
        [
            Edit(
                "raw/probe.py",
                "weights.to(parameter.device, parameter.dtype), instrumentation.blocks[key]",
                "weights.to(parameter.dtype), instrumentation.blocks[key]",
            )
        ],
        DEVICE,
    ),
    Mutant(
        "noise made on a device is given again",
        "What lies ready for a device is not used up: two parameters get the same noise, and their difference none.",
        [
            Edit(
                "release/device_noise.py",
                "self._left[:count], self._left[count:]",
                "self._left[:count], self._left",
            )
        ],
        ["tests/release/test_noise.py"],
    ),
    Mutant(
        "a fork takes the noise of a device",
        "A process that was forked goes on with the noise that its parent has made ahead, as does the parent.",
        [
            Edit(
                "release/device_noise.py",
                "        if this_process() != self._process:\n            self._start()\n",
                "",
            )
        ],
        ["tests/release/test_noise.py"],
    ),
    Mutant(
        "a device is asked at every layer",
        "Checks on a device answer at once, so the host waits for it at every layer.",
        [Edit("raw/clipping.py", "        return not self._careful\n", "        return False\n")],
        DEVICE,
    ),
    Mutant(
        "doubts about a device's numbers are forgotten",
        "What the checks that were put off have found changes nothing: examples that are not finite enter the sum.",
        [Edit("raw/clipping.py", "sure = not confirmed(hope.doubts)", "sure = True")],
        ["tests/raw/test_doubts.py"],
    ),
    Mutant(
        "rounding errors on a device are forgotten",
        "Sums on a device are not verified.",
        [Edit("raw/clipping.py", "            self._allowance.note(hope.doubts)\n", "            pass\n")],
        ["tests/raw/test_doubts.py"],
    ),
    Mutant(
        "chunks that are worked on again are not the same",
        "A chunk is held without a copy: where its memory is filled again, the last examples count many times.",
        [Edit("raw/clipping.py", "else batches.own(placed, chunk)", "else placed")],
        ["tests/raw/test_doubts.py"],
    ),
    Mutant(
        "another attempt draws anew",
        "A batch that is worked on again has other dropout, so one example decides on the draws of others.",
        [Edit("raw/clipping.py", "            restore_random_state(hope.state)\n", "")],
        ["tests/raw/test_doubts.py"],
    ),
    Mutant(
        "examples count twice in the bound",
        "Examples of a batch that is worked on again count twice, and a batch at the limit is refused.",
        [Edit("raw/clipping.py", "            self._summed, self._terms = hope.summed, hope.terms\n", "")],
        ["tests/raw/test_doubts.py"],
    ),
    Mutant(
        "pieces of a device's noise repeat",
        "Every piece of noise on a device has the same nonce, so the noise repeats after a million numbers.",
        [Edit("release/device_noise.py", "                self._pieces += 1\n", "")],
        ["tests/release/test_noise.py"],
    ),
    Mutant(
        "the key of a device is fixed",
        "Noise on a device comes from a key that anybody knows.",
        [Edit("release/device_noise.py", "os.urandom(32)", "bytes(32)")],
        ["tests/release/test_noise.py"],
    ),
    Mutant(
        "a device's cipher has fewer rounds",
        "Noise on a device comes from two rounds of the cipher in place of twenty.",
        [Edit("release/device_noise.py", "for _ in range(10):", "for _ in range(1):")],
        ["tests/release/test_noise.py"],
    ),
    Mutant(
        "noise goes to a device from the host",
        "Noise is drawn on the host and copied to the device in every step, as much as the model is large.",
        [Edit("release/noise.py", "and works_on(device) else None", "and False else None")],
        DEVICE,
    ),
    Mutant(
        "the origin is restored to the host",
        "A run that is resumed in its warm-up on a device has its starting point on the CPU, and fails later.",
        [
            Edit(
                "training/state.py",
                'self._origin = {name: t.to(device[name]) for name, t in parts["origin"][0].items()}',
                'self._origin = parts["origin"][0]',
            )
        ],
        DEVICE,
    ),
)
