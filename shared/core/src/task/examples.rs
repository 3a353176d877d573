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

pub(super) const REBOOT: &str = "\
- id: new-kernel
  type: reboot
  parameters:
    when: required
";

pub(super) const PUPPET: &str = "\
- id: banner
  type: puppet
  parameters:
    manifest: |
      file { '/etc/issue':
        content => \"${facts['site']}: ${lookup('banner::text')}\\n\",
      }
    hiera:
      banner::text: '{{ labels.region }}'
    facts:
      site: '{{ node.name }}'
";
