"""Random draws for mutants: quick to seed, since every mutant has its own generator."""

from typing import TypeVar

T = TypeVar("T")
MASK = 2**64 - 1


class Draws:
    """A linear congruential generator of 64 bits whose upper half is used; equal seeds give equal draws.

    `random.Random` fills 2.5 kB of state from its seed, which takes as long as a whole mutant.
    """

    __slots__ = ("state",)

    def __init__(self, seed):
        # Neighbouring seeds have to begin far apart: the finaliser of SplitMix64.
        state = seed * 0x9E3779B97F4A7C15 & MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
        self.state = state ^ state >> 31

    def below(self, bound):
        self.state = state = self.state * 6364136223846793005 + 1442695040888963407 & MASK
        return (state >> 32) * bound >> 32

    def choice(self, options):
        self.state = state = self.state * 6364136223846793005 + 1442695040888963407 & MASK
        return options[(state >> 32) * len(options) >> 32]

    def percent(self, chance):
        return self.below(100) < chance

    def octets(self, count):
        return bytes([self.below(256) for _ in range(count)])
