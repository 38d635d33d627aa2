"""The alert relay: from Alertmanager's webhook to the robots and pagers of people."""
