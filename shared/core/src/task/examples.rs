//! Examples of tasks for the documentation, one for each task type that hosts run. A test checks them, and the test of
//! booted machines runs them.

pub(super) const FILE: &str = "\
- id: motd
  type: file
  parameters:
    path: /etc/motd
    template: |
      {{ node.name }} in {{ labels.region }}
    owner: root
    mode: \"0644\"
";

pub(super) const SHELL: &str = "\
- id: host-key
  type: shell
  parameters:
    command: [ssh-keygen, -t, ed25519, -N, '', -f, /etc/app/host_key]
    creates: /etc/app/host_key
";

pub(super) const SERVICE: &str = "\
- id: cron
  type: service
  parameters:
    unit: cron
    state: running
    enabled: true
";

pub(super) const PACKAGE: &str = "\
- id: web-packages
  type: package
  parameters:
    name: [nginx, libnginx-mod-stream]
";

pub(super) const USER: &str = "\
- id: app-user
  type: user
  parameters:
    name: app
    system: true
    group: app
    groups: [adm]
    home: /var/lib/app
    create_home: true
    shell: /usr/sbin/nologin
    comment: The application
";

pub(super) const GROUP_ACCOUNT: &str = "\
- id: app-group
  type: group_account
  parameters:
    name: app
    system: true
";

pub(super) const DIRECTORY: &str = "\
- id: site-data
  type: directory
  parameters:
    path: /srv/site
    owner: www-data
    group: www-data
    mode: \"0750\"
";

pub(super) const LINK: &str = "\
- id: site-enabled
  type: link
  parameters:
    path: /srv/current
    target: releases/v7
";
