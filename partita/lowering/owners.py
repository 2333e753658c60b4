"""Which server holds which bucket."""

from __future__ import annotations

from partita.lowering.samples import Draft

Owners = tuple[int, ...]


def owners_of(draft: Draft, hosts: tuple[int, ...]) -> Owners:
    """The server of each bucket: the one with the fewest bytes so far; -1 of those whose factors workers share."""
    load = dict.fromkeys(hosts, 0)
    owners = []
    for i, bucket in enumerate(draft.buckets):
        if i in draft.factored and not draft.factored[i].served:
            owners.append(-1)
            continue
        host = min(load, key=lambda h: load[h])
        load[host] += bucket.size
        owners.append(host)
    return tuple(owners)
