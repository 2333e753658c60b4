"""Micro-benchmarks, as one rank carries them out; the lab makes Costs of what they return.

operators          what a rank replies of its share of a plan's operators
touches            what it replies of passes over tensors, and of what goes with them
loads              loading a batch
bench              Bench: how a call is timed, and by which clock
timing             calls timed after other work
stretches          operators that follow one another, with inputs: what is timed together
inputs             made-up inputs
operator_timing    operators one by one, stretch after stretch
opaque_timing      a model that is one operator
workspace_bytes    what operators take of a card
codecs             encoding and decoding
link_timing        messages and collectives
sums               the transport of sums that are timed
schedule_timing    all-reduces by one schedule after the other
crowd_timing       messages of a rank with several at once
extra_lane         the lane in which these are timed
worker_timing      what the worker itself takes
overlap_timing     collectives and messages beside a step's operators
disturbance        what messages and computing cost each other
"""
