"""Search for the worst neighbour: a batch and one odd example that moves its clipped sum as far as possible.

``python -m tools.attack`` measures dS / sensitivity, where dS = ‖clipped sum with the example − clipped sum without‖₂
and the sensitivity is what the noise of a release is scaled by. Above 1, ε is wrong.

``targets``    models, losses and what an attacker may set in one row of data
``rows``       odd rows: structured ones, and how to change one a little
``settings``   everything else that a run may vary: type, pieces, statistic, clip norm, companions
``ascent``     gradient ascent on cancellation, in double precision
``measuring``  the ratio, for Tacit
``peers``      the same sums by Opacus and fastDP
``search``     evolution over rows and settings
``crowds``     large batches and hostile companions
``end_to_end`` the public Trainer: how often is the odd row noticed in the final weights?
``page``       docs/attack.md
"""
