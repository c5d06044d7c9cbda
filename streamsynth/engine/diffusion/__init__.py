"""Whole clips: requests that are states and steps, made step by step, and handed out when they are done."""
