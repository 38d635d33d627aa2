"""An example configuration of the relay, as `tocsin alerts example` prints it."""

EXAMPLE = """\
# The alert relay: `tocsin alerts relay --config THIS FILE`.
# Alertmanager posts to http://127.0.0.1:9465/alerts/<name of a receiver>.
listen: {host: 127.0.0.1, port: 9465}
# Messages on their way, dead letters, debug reports, reproductions.
state: state
# Bearer token that Alertmanager must send; needed as soon as the host is not loopback.
# token_file: secrets/relay-token

# Secrets stand in files of mode 0600 (or 0440), relative to this one; never here.
receivers:
  wecom-robot:
    kind: wecom_robot
    language: zh
    url_file: secrets/wecom-robot-url      # https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=…
    mention: []                            # user ids to call in a P0 message
  dingtalk:
    kind: dingtalk
    language: zh
    url_file: secrets/dingtalk-url         # https://oapi.dingtalk.com/robot/send?access_token=…
    secret_file: secrets/dingtalk-secret   # SEC…; leave out for a robot that is not signed
    mention_mobiles: []
  slack:
    kind: slack
    url_file: secrets/slack-url            # https://hooks.slack.com/services/…
  pagerduty:
    kind: pagerduty
    routing_key_file: secrets/pagerduty-key
  webhook:
    kind: webhook
    url: http://127.0.0.1:9999/tickets
    # token_file: secrets/webhook-token
  # Feishu and whatever else the apprise library speaks: pip install 'tocsin[alerts]'.
  feishu:
    kind: apprise
    language: zh
    urls_file: secrets/apprise-urls        # feishu://TOKEN, one URL a line
  # Where drills go, and the watchdog that proves every minute that alerts flow.
  drill:
    kind: webhook
    url: http://127.0.0.1:9999/drills
  deadman:
    kind: webhook
    url: http://127.0.0.1:9999/alive
"""
