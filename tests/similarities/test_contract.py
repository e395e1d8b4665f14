"""Every similarity against its own brute-force formula."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.special import logsumexp
from similarities.contract import LiftedContract, PairwiseContract

from gaussmatch.core.similarities import SIMILARITIES, similarity


class TestCosine(LiftedContract):
    name = "cosine"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return np.sum(mi * mc) / np.sqrt(np.sum(mi**2) * np.sum(mc**2))


def kl(mp, vp, mq, vq):
    return 0.5 * np.sum(vp / vq - np.log(vp / vq) + (mp - mq) ** 2 / vq - 1)


class TestKL(LiftedContract):
    name = "kl"
    symmetric = False

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -kl(mi, vi, mc, vc)


class TestReverseKL(LiftedContract):
    name = "reverse_kl"
    symmetric = False

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -kl(mc, vc, mi, vi)


class TestMinKL(LiftedContract):
    name = "min_kl"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -min(kl(mi, vi, mc, vc), kl(mc, vc, mi, vi))


class TestQueryKLOfCaptions(LiftedContract):
    name = "query_kl"
    query = "captions"
    symmetric = False
    formula = staticmethod(TestKL.formula)


class TestQueryKLOfImages(LiftedContract):
    name = "query_kl"
    query = "images"
    symmetric = False
    formula = staticmethod(TestReverseKL.formula)


class TestKLPerDimension(LiftedContract):
    name = "kl"
    settings: ClassVar = {"per_dimension": True}
    symmetric = False

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -kl(mi, vi, mc, vc) / len(mi)


class TestWasserstein(LiftedContract):
    name = "wasserstein"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -np.sqrt(np.sum((mi - mc) ** 2) + np.sum((np.sqrt(vi) - np.sqrt(vc)) ** 2))


class TestWassersteinLiteral(LiftedContract):
    name = "wasserstein_literal"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -np.sqrt(np.sum((mi - mc) ** 2) + np.sum((vi - vc) ** 2))


class TestCSD(LiftedContract):
    name = "csd"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -(np.sum((mi - mc) ** 2) + np.sum(vi) + np.sum(vc))


class TestProLIP(LiftedContract):
    name = "prolip"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return np.sum(mi * mc) - 0.5 * (np.sum(vi) + np.sum(vc))


class TestMIL(PairwiseContract):
    name = "mil"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return TestCosine.formula(mi, vi, mc, vc)  # with one embedding; test_mil.py has several


class TestMatchProb(PairwiseContract):
    name = "match_prob"
    symmetric = False  # each side has its own noise; test_match_prob.py: in the mean it is
    per_pair = 49
    many = (48, 256)

    @staticmethod
    def formula(mi, vi, mc, vc):
        """Sample by sample; ln P and ln(1 − P) by log-sum-exp over the 49 pairs."""
        zi, zc = (
            m + np.sqrt(v) * similarity("match_prob").noise(side, len(m)).numpy()
            for side, m, v in (("images", mi, vi), ("captions", mc, vc))
        )
        far = np.sqrt(((zi[:, None] - zc) ** 2).sum(-1) + 1e-6).ravel()
        logit = 15 - 15 * far
        both = np.logaddexp(logit, -logit)
        return logsumexp(logit - both) - logsumexp(-logit - both)


def test_every_similarity_is_under_contract():
    kinds = (*LiftedContract.__subclasses__(), *PairwiseContract.__subclasses__())
    assert {c.name for c in kinds} == set(SIMILARITIES)
