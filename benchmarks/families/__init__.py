"""Models that users bring, one small instance of each family: is what a private step computes from them right?"""
