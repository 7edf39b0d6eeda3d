"""Where an object could be: selective search, edge boxes, files made by others, and the store that keeps them."""

from melm.proposals.compute import compute_proposals
from melm.proposals.ready_made import ReadyMade
from melm.proposals.record import METHODS, Proposals, ProposalSettings
from melm.proposals.run import Done, make_proposals, settings_for_file
from melm.proposals.store import ProposalStore

__all__ = [
    "METHODS",
    "Done",
    "ProposalSettings",
    "ProposalStore",
    "Proposals",
    "ReadyMade",
    "compute_proposals",
    "make_proposals",
    "settings_for_file",
]
