"""placeholder for the first minutes"""
