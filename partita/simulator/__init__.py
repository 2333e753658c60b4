"""A Program and Costs -> a Timeline.

simulate        the passes in their order: `simulate`, `step_seconds`
ports           the cluster's processors and links as resources
transfers       what ranks do together in a round
collectives     its collectives
messages        its messages
hops            those that go hop by hop, each as one activity
crowds          with how many others a rank has messages at once
symmetry        ranks that go through the same: one is simulated for all
expand          rounds of a Program as activities
activities      Activities, Resources: what the clock moves
clock           `advance`: the laws of the clock, and how to call it
clock_loop      its loop, compiled
clock_state     its arrays
queues          its heaps
sharing         its shares of resources
plain           the same laws written to be read: the oracle
moves           what instructions move, and what that costs computing beside them
overlap         what moves and what computes hold each other up
progress        how much has been done by any moment
cooling         what computes takes longer behind a wait
unevenness      rounds that take unequally long
merges          the ledger that a run would have written
"""
