"""Every similarity against its own brute-force formula."""

from __future__ import annotations

import numpy as np
from similarities.contract import SimilarityContract

from gaussmatch.similarities import SIMILARITIES


class TestCosine(SimilarityContract):
    name = "cosine"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return np.sum(mi * mc) / np.sqrt(np.sum(mi**2) * np.sum(mc**2))


def kl(mp, vp, mq, vq):
    return 0.5 * np.sum(vp / vq - np.log(vp / vq) + (mp - mq) ** 2 / vq - 1)


class TestKL(SimilarityContract):
    name = "kl"
    symmetric = False

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -kl(mi, vi, mc, vc)


class TestReverseKL(SimilarityContract):
    name = "reverse_kl"
    symmetric = False

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -kl(mc, vc, mi, vi)


class TestMinKL(SimilarityContract):
    name = "min_kl"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -min(kl(mi, vi, mc, vc), kl(mc, vc, mi, vi))


class TestWasserstein(SimilarityContract):
    name = "wasserstein"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -np.sqrt(np.sum((mi - mc) ** 2) + np.sum((np.sqrt(vi) - np.sqrt(vc)) ** 2))


class TestWassersteinLiteral(SimilarityContract):
    name = "wasserstein_literal"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -np.sqrt(np.sum((mi - mc) ** 2) + np.sum((vi - vc) ** 2))


class TestCSD(SimilarityContract):
    name = "csd"
    symmetric = True

    @staticmethod
    def formula(mi, vi, mc, vc):
        return -(np.sum((mi - mc) ** 2) + np.sum(vi) + np.sum(vc))


def test_every_similarity_is_under_contract():
    assert {c.name for c in SimilarityContract.__subclasses__()} == set(SIMILARITIES)
