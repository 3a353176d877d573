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

pub(super) const SYNC: &str = "\
- id: pages
  type: sync
  parameters:
    src: /usr/share/base-files
    dst: /srv/pages
    delete: true
    ignore: ['*.tmp', cache/]
    mode: \"0644\"
";

pub(super) const COPY_FILES: &str = "\
- id: skeleton
  type: copy_files
  parameters:
    files:
      - {src: /usr/share/base-files/motd, dst: /srv/skeleton/motd}
      - {src: /usr/share/base-files/profile, dst: /srv/skeleton/profile}
    mode: \"0644\"
";
