//! Networks: interfaces from `/sys/class/net`, IPv4 addresses from sysinfo, and IPv6 addresses from
//! `/proc/net/if_inet6`, the only source that distinguishes temporary addresses.
//!
//! A fact must not change by itself, so not every interface is reported:
//! - An interface that is backed by hardware, real or virtual, is reported. An exception is a virtual function of a
//!   card of this host, because virtual functions are passed to guests and come back.
//! - A VLAN, bond, team or bridge is reported if an interface below it is reported, because it often has the host's
//!   address.
//! - Other software interfaces (loopback, bridges of containers and guests, veth, tap, tunnels, macvlan) are not
//!   reported.
//! - If these rules select no interface, as in a container, only the one of the default route is reported.
//!
//! An address is reported unless it is loopback, link-local, multicast, temporary or tentative. An interface with a dot
//! in its name (`eth0.100`) would be two keys of a fact's path. So its addresses are in `network.addresses`, and it has
//! no `network.interfaces.*` facts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use serde_json::Value;
use sysinfo::{NetworkData, Networks};

use super::source::HostRoot;
use super::{HostFacts, is_key};

/// Maximum number of interfaces that are reported. A finding says how many are omitted.
const MAX_INTERFACES: usize = 64;
/// Maximum number of addresses of a host.
const MAX_ADDRESSES: usize = 256;
/// Maximum depth of stacked interfaces, such as a bridge on a VLAN on a bond.
const MAX_DEPTH: usize = 8;
/// Flags of a volatile IPv6 address: temporary, failed (duplicate), and tentative.
const VOLATILE_IPV6_FLAGS: u8 = 0x01 | 0x08 | 0x40;
/// Flags of a route: in use, and reject.
const ROUTE_UP: u32 = 0x1;
const ROUTE_REJECT: u32 = 0x200;
/// `addr_assign_type` of a random hardware address.
const ADDR_ASSIGN_RANDOM: u64 = 1;

/// The name of an interface and one of its addresses.
pub(super) type InterfaceAddress = (String, IpAddr);

/// An interface in `/sys/class/net`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    name: String,
    has_device: bool,
    is_virtual_function: bool,
    kind: Option<String>,
    lower_names: Vec<String>,
    mac: Option<String>,
    mtu: Option<u64>,
    has_sriov: bool,
    has_rdma: bool,
}

/// The interfaces and addresses that are reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    interfaces: Vec<Interface>,
    addresses: BTreeMap<String, Vec<IpAddr>>,
    source: Option<IpAddr>,
}

/// Returns the current IPv4 addresses by interface.
pub(super) fn read_ipv4() -> Vec<InterfaceAddress> {
    // Without this list there are no IPv4 facts. The interfaces are in `/sys` anyway.
    let Ok(networks) = Networks::new_with_refreshed_list() else { return Vec::new() };
    let to_addresses = |(name, data): (&OsString, &NetworkData)| -> Vec<InterfaceAddress> {
        let Some(name) = name.to_str() else { return Vec::new() };
        let addresses = data.ip_networks().iter().map(|network| network.addr);
        addresses.filter(IpAddr::is_ipv4).map(|address| (name.to_owned(), address)).collect()
    };
    networks.iter().flat_map(to_addresses).collect()
}

/// Returns the source address of the default route. Connecting a UDP socket sends nothing. The destinations are
/// documentation addresses, so no host has a more specific route to them.
pub(super) fn default_source() -> Option<IpAddr> {
    let v4 = (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(203, 0, 113, 1).into());
    let v6 = (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into());
    let from = |(local, remote): (IpAddr, IpAddr)| {
        let socket = UdpSocket::bind(SocketAddr::new(local, 0)).ok()?;
        socket.connect(SocketAddr::new(remote, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    [v4, v6].into_iter().filter_map(from).find(is_global)
}

/// Reads the interfaces and addresses that the rules of this module select. `ipv4` comes from [`read_ipv4`], and
/// `source` from [`default_source`].
pub(super) fn read(root: &HostRoot, ipv4: &[InterfaceAddress], source: Option<IpAddr>) -> Network {
    let all: Vec<Interface> = root.names("/sys/class/net").into_iter().map(|name| interface(root, name)).collect();
    let routed = default_route_ipv4(&root.text("/proc/net/route").unwrap_or_default())
        .or_else(|| default_route_ipv6(&root.text("/proc/net/ipv6_route").unwrap_or_default()));
    let ipv6 = stable_ipv6(&root.text("/proc/net/if_inet6").unwrap_or_default());
    select(&all, routed.as_deref(), ipv4.iter().cloned().chain(ipv6), source)
}

impl Network {
    /// Adds the facts `network.*`.
    pub(super) fn add_facts(&self, facts: &mut HostFacts) {
        let mut addresses: Vec<IpAddr> = self.addresses.values().flatten().copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        facts.add_limit_finding("addresses", addresses.len().saturating_sub(MAX_ADDRESSES), MAX_ADDRESSES);
        addresses.truncate(MAX_ADDRESSES);
        facts.add_value("network.address", self.source.map(|address| address.to_string().into()));
        facts.add_value("network.addresses", to_json(&addresses));
        let named: Vec<&Interface> = self.interfaces.iter().filter(|one| is_key(&one.name)).collect();
        for interface in named.iter().take(MAX_INTERFACES) {
            let at = |last: &str| format!("network.interfaces.{}.{last}", interface.name);
            let ips = self.addresses.get(&interface.name).map(Vec::as_slice).unwrap_or_default();
            facts.add_value(&at("addresses"), to_json(&ips[..ips.len().min(MAX_ADDRESSES)]));
            facts.add_text(&at("mac"), interface.mac.as_deref());
            facts.add_number(&at("mtu"), interface.mtu);
        }
        facts.add_limit_finding("interfaces", named.len().saturating_sub(MAX_INTERFACES), MAX_INTERFACES);
    }

    /// Returns whether a card supports virtual functions.
    pub(super) fn has_sriov(&self) -> bool {
        self.interfaces.iter().any(|one| one.has_sriov)
    }

    /// Returns whether a card has remote memory access.
    pub(super) fn has_rdma(&self) -> bool {
        self.interfaces.iter().any(|one| one.has_rdma)
    }
}

/// Selects the interfaces and addresses to report from all that exist. `routed` is the interface of the default route,
/// and `source` is the source address of that route. A source address that is not the host's own is replaced by the
/// first address of `routed`.
fn select(
    all: &[Interface],
    routed: Option<&str>,
    addresses: impl IntoIterator<Item = InterfaceAddress>,
    source: Option<IpAddr>,
) -> Network {
    let mut selected: Vec<&Interface> = all.iter().filter(|one| is_stable(one, all, MAX_DEPTH)).collect();
    if selected.is_empty() {
        selected.extend(all.iter().find(|one| Some(&*one.name) == routed));
    }
    let mut own_ips: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    let mut on_loopback = Vec::new();
    for (name, address) in addresses.into_iter().filter(|(_, address)| is_global(address)) {
        if name == "lo" {
            on_loopback.push(address);
        } else if selected.iter().any(|one| one.name == name) {
            own_ips.entry(name).or_default().push(address);
        }
    }
    for list in own_ips.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    // A host that announces its address to routers (BGP) sends from an address of its loopback interface.
    let is_own = |address: &IpAddr| on_loopback.contains(address) || own_ips.values().any(|list| list.contains(address));
    let source = source.filter(is_own).or_else(|| own_ips.get(routed?)?.first().copied());
    Network { interfaces: selected.into_iter().cloned().collect(), addresses: own_ips, source }
}

/// Returns whether an interface exists permanently: it is hardware, or a VLAN, bond, bridge or team on a permanent
/// interface.
fn is_stable(interface: &Interface, all: &[Interface], depth: usize) -> bool {
    if interface.has_device {
        return !interface.is_virtual_function;
    }
    let is_stacked = matches!(interface.kind.as_deref(), None | Some("vlan" | "bond" | "bridge" | "team"));
    let is_below = |other: &&Interface| interface.lower_names.contains(&other.name);
    is_stacked && depth > 0 && all.iter().filter(is_below).any(|lower| is_stable(lower, all, depth - 1))
}

/// Reads one interface from `/sys/class/net`. A random hardware address is omitted.
fn interface(root: &HostRoot, name: String) -> Interface {
    let at = |file: &str| format!("/sys/class/net/{name}/{file}");
    let uevent = root.text(&at("uevent")).unwrap_or_default();
    let files = root.names(&format!("/sys/class/net/{name}"));
    let mac = root.line(&at("address")).filter(|mac| is_mac(mac));
    Interface {
        has_device: root.exists(&at("device")),
        is_virtual_function: root.exists(&at("device/physfn")),
        kind: uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE=")).map(str::to_owned),
        lower_names: files.iter().filter_map(|file| file.strip_prefix("lower_")).map(str::to_owned).collect(),
        mac: mac.filter(|_| root.number(&at("addr_assign_type")) != Some(ADDR_ASSIGN_RANDOM)),
        mtu: root.number(&at("mtu")),
        has_sriov: root.number(&at("device/sriov_totalvfs")).is_some_and(|most| most > 0),
        has_rdma: root.exists(&at("device/infiniband")),
        name,
    }
}

/// Returns whether a text is octets in hexadecimal, separated by colons, and not all zero.
fn is_mac(text: &str) -> bool {
    let is_octet = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.len() <= 59 && text.split(':').all(is_octet) && text.bytes().any(|byte| byte != b'0' && byte != b':')
}

/// Returns whether other hosts can use an address: it is not loopback, link-local, multicast or unspecified.
fn is_global(address: &IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !is_local && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}

/// Parses `/proc/net/if_inet6`: address, index, prefix, scope, flags, name. Volatile addresses are omitted.
fn stable_ipv6(table: &str) -> Vec<InterfaceAddress> {
    let row = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        let flags = u8::from_str_radix(fields.nth(3)?, 16).ok()?;
        let name = fields.next()?.to_owned();
        (flags & VOLATILE_IPV6_FLAGS == 0).then(|| (name, Ipv6Addr::from(address).into()))
    };
    table.lines().filter_map(row).collect()
}

/// Parses `/proc/net/route`. Returns the interface of the default route with the lowest metric.
fn default_route_ipv4(table: &str) -> Option<String> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [name, "00000000", _, flags, _, _, metric, "00000000", ..] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        (flags & (ROUTE_UP | ROUTE_REJECT) == ROUTE_UP).then_some((metric.parse::<u32>().ok()?, name.to_owned()))
    };
    table.lines().filter_map(row).min().map(|(_, name)| name)
}

/// Parses `/proc/net/ipv6_route`, like [`default_route_ipv4`].
fn default_route_ipv6(table: &str) -> Option<String> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [to, "00", _, _, _, metric, _, _, flags, name] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let is_default = to.bytes().all(|byte| byte == b'0') && flags & (ROUTE_UP | ROUTE_REJECT) == ROUTE_UP;
        (is_default && name != "lo").then_some((u32::from_str_radix(metric, 16).ok()?, name.to_owned()))
    };
    table.lines().filter_map(row).min().map(|(_, name)| name)
}

fn to_json(addresses: &[IpAddr]) -> Option<Value> {
    (!addresses.is_empty()).then(|| addresses.iter().map(ToString::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hardware(name: &str) -> Interface {
        Interface { name: name.into(), has_device: true, ..Interface::default() }
    }

    fn software(name: &str, kind: Option<&str>, lower: &[&str]) -> Interface {
        let lower = lower.iter().map(|&name| name.to_owned()).collect();
        Interface { name: name.into(), kind: kind.map(str::to_owned), lower_names: lower, ..Interface::default() }
    }

    fn selected_names(all: &[Interface], routed: Option<&str>) -> Vec<String> {
        select(all, routed, [], None).interfaces.into_iter().map(|one| one.name).collect()
    }

    #[test]
    fn select_omits_temporary_interfaces() {
        let host = [
            Interface { is_virtual_function: true, ..hardware("ens1f0v0") },
            software("bond0", Some("bond"), &["eno1", "eno2"]),
            software("bond0.100", Some("vlan"), &["bond0"]),
            software("br-lan", Some("bridge"), &["bond0.100", "vnet0"]),
            software("docker0", Some("bridge"), &["veth12"]),
            hardware("eno1"),
            hardware("eno2"),
            software("flannel.1", Some("vxlan"), &["eno1"]),
            software("lo", None, &[]),
            software("macvtap0", Some("macvlan"), &["eno1"]),
            software("team0", None, &["eno2"]),
            software("tun0", None, &[]),
            software("veth12", None, &[]),
            software("virbr0", Some("bridge"), &[]),
            software("vnet0", None, &[]),
            software("wg0", Some("wireguard"), &[]),
        ];
        assert_eq!(selected_names(&host, Some("br-lan")), ["bond0", "bond0.100", "br-lan", "eno1", "eno2", "team0"]);
        let container = [software("eth0", None, &[]), software("lo", None, &[]), software("veth1", None, &[])];
        assert_eq!(selected_names(&container, Some("eth0")), ["eth0"]);
        assert!(selected_names(&container, None).is_empty());
        let ring = [software("a", Some("bond"), &["b"]), software("b", Some("bond"), &["a"])];
        assert!(selected_names(&ring, None).is_empty());
    }

    #[test]
    fn select_omits_local_and_foreign_addresses() {
        let all = [hardware("eth0"), software("docker0", Some("bridge"), &[]), software("lo", None, &[])];
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let said = [
            ("lo", "127.0.0.1"),
            ("lo", "192.0.2.77"),
            ("docker0", "172.17.0.1"),
            ("eth0", "fd00::2"),
            ("eth0", "10.0.0.10"),
            ("eth0", "10.0.0.9"),
            ("eth0", "10.0.0.9"),
            ("eth0", "169.254.3.4"),
            ("eth0", "fe80::1"),
            ("eth0", "0.0.0.0"),
            ("eth0", "255.255.255.255"),
            ("eth0", "ff02::1"),
        ];
        let said = || said.iter().map(|(name, address)| ((*name).to_owned(), ip(address)));
        for (source, expected) in [
            (Some("10.0.0.10"), "10.0.0.10"),
            (Some("192.0.2.77"), "192.0.2.77"),
            (Some("172.17.0.1"), "10.0.0.9"),
            (None, "10.0.0.9"),
        ] {
            let network = select(&all, Some("eth0"), said(), source.map(ip));
            assert_eq!(network.source, Some(ip(expected)));
            assert_eq!(network.addresses["eth0"], ["10.0.0.9", "10.0.0.10", "fd00::2"].map(ip));
            assert_eq!(network.addresses.len(), 1);
        }
        assert_eq!(select(&all, None, said(), None).source, None);
    }

    #[test]
    fn stable_ipv6_omits_temporary_address() {
        let row = |flags: &str| format!("20010db8000000000000000000000001 02 40 00 {flags}     eth0\n");
        for (flags, lasts) in [("80", true), ("00", true), ("20", true), ("01", false), ("40", false), ("08", false)] {
            assert_eq!(stable_ipv6(&row(flags)).len() == 1, lasts, "{flags}");
        }
        assert!(stable_ipv6("x\n\n1 2 3\n20010db8000000000000000000000001ff 02 40 00 80 eth0\n").is_empty());
    }

    #[test]
    fn default_route_has_lowest_metric() {
        let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let row = |name: &str, to: &str, flags: &str, metric: u32| {
            format!("{name}\t{to}\t010200C0\t{flags}\t0\t0\t{metric}\t00000000\t0\t0\t0\n")
        };
        let wifi = row("wlan0", "00000000", "0003", 600);
        for (table, expected) in [
            (format!("{head}{wifi}{}", row("eth0", "00000000", "0003", 100)), Some("eth0")),
            (format!("{head}{wifi}{}", row("lo", "00000000", "0201", 0)), Some("wlan0")),
            (format!("{head}{}", row("eth0", "000200C0", "0001", 0)), None),
            (head.to_owned(), None),
            ("garbage\n\0".to_owned(), None),
        ] {
            assert_eq!(default_route_ipv4(&table).as_deref(), expected, "{table}");
        }
        let zero = "0".repeat(32);
        let v6 = |flags: &str, name: &str| {
            format!("{zero} 00 {zero} 00 fe80000000000000000000000000000a 00000400 1 0 {flags}     {name}\n")
        };
        for (table, expected) in [
            (v6("00450003", "eth0"), Some("eth0")),
            (v6("00200200", "lo"), None),
            (v6("00000003", "lo"), None),
            (v6("zz", "eth0"), None),
        ] {
            assert_eq!(default_route_ipv6(&table).as_deref(), expected, "{table}");
        }
    }

    #[test]
    fn is_mac_requires_colon_separated_octets() {
        for (text, expected) in [
            ("52:54:00:12:34:56", true),
            ("00:00:00:00:00:00", false),
            ("a0:00:02:20:fe:80:00:00:00:00:00:00:e4:1d:2d:03:00:50:00:10", true),
            ("192.0.2.1", false),
            ("", false),
        ] {
            assert_eq!(is_mac(text), expected, "{text}");
        }
    }
}
