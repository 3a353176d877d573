//! Networks: `/sys/class/net` for what interfaces there are, their addresses by sysinfo (IPv4) and
//! `/proc/net/if_inet6` (IPv6, which alone tells temporary addresses from lasting ones).
//!
//! A fact must not change by itself, so not every interface is one:
//! - one with hardware (or a hypervisor's) behind it is, unless it is a virtual function of a card that this host
//!   itself has: those are handed to guests and come back;
//! - a VLAN, bond, team or bridge is, if below it there is one that is: a host's address often stands there;
//! - what else there is in software (loopback, bridges of containers and guests, veth, tap, tunnels, macvlan) is not;
//! - where no interface is by these rules, as in a container, the one of the default route is, alone.
//!
//! An address is a fact if it is no loopback, link-local, multicast, temporary or tentative one. An interface whose
//! name has a dot (`eth0.100`) would be two keys of a path: its addresses are in `network.addresses`, and it has no
//! facts of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use serde_json::Value;
use sysinfo::{NetworkData, Networks};

use super::source::Root;
use super::{Seen, is_key};

/// The most interfaces that are facts; a finding says how many are left out.
const MAX_INTERFACES: usize = 64;
/// The most addresses of a host.
const MAX_ADDRESSES: usize = 256;
/// How deep interfaces stand on one another, as a bridge on a VLAN on a bond.
const MAX_DEPTH: usize = 8;
/// Flags of an IPv6 address: temporary, failed and tentative.
const PASSING_IPV6: u8 = 0x01 | 0x08 | 0x40;
/// Flags of a route: in use, and one that refuses.
const ROUTE_UP: u32 = 0x1;
const ROUTE_REJECT: u32 = 0x200;
/// `addr_assign_type` of a hardware address that was made up when the interface was.
const RANDOM: u64 = 1;

/// An address of an interface.
pub(super) type Addressed = (String, IpAddr);

/// An interface as `/sys/class/net` tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    name: String,
    has_device: bool,
    is_virtual_function: bool,
    kind: Option<String>,
    lower: Vec<String>,
    mac: Option<String>,
    mtu: Option<u64>,
    has_sriov: bool,
    has_rdma: bool,
}

/// What of the networks is a fact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    interfaces: Vec<Interface>,
    addresses: BTreeMap<String, Vec<IpAddr>>,
    source: Option<IpAddr>,
}

/// IPv4 addresses by interface, as the kernel has them now.
pub(super) fn ipv4() -> Vec<Addressed> {
    // Without a list there are no IPv4 facts; what the kernel says of the interfaces stands in `/sys` all the same.
    let Ok(networks) = Networks::new_with_refreshed_list() else { return Vec::new() };
    let of = |(name, data): (&OsString, &NetworkData)| -> Vec<Addressed> {
        let Some(name) = name.to_str() else { return Vec::new() };
        let addresses = data.ip_networks().iter().map(|network| network.addr);
        addresses.filter(IpAddr::is_ipv4).map(|address| (name.to_owned(), address)).collect()
    };
    networks.iter().flat_map(of).collect()
}

/// The address that the default route would send from: a UDP socket is connected, which sends nothing. Its ends
/// are addresses kept for documentation, so that no host has a narrower route to them.
pub(super) fn source() -> Option<IpAddr> {
    let v4 = (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(203, 0, 113, 1).into());
    let v6 = (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into());
    let from = |(own, there): (IpAddr, IpAddr)| {
        let socket = UdpSocket::bind(SocketAddr::new(own, 0)).ok()?;
        socket.connect(SocketAddr::new(there, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    [v4, v6].into_iter().filter_map(from).find(is_global)
}

/// Reads what the rules above keep. `ipv4` and `source` come from this module's functions of these names.
pub(super) fn read(root: &Root, ipv4: &[Addressed], source: Option<IpAddr>) -> Network {
    let all: Vec<Interface> = root.names("/sys/class/net").into_iter().map(|name| interface(root, name)).collect();
    let routed = routed_ipv4(&root.text("/proc/net/route").unwrap_or_default())
        .or_else(|| routed_ipv6(&root.text("/proc/net/ipv6_route").unwrap_or_default()));
    let ipv6 = lasting_ipv6(&root.text("/proc/net/if_inet6").unwrap_or_default());
    choose(&all, routed.as_deref(), ipv4.iter().cloned().chain(ipv6), source)
}

impl Network {
    /// Writes the facts down.
    pub(super) fn say(&self, seen: &mut Seen) {
        let mut all: Vec<IpAddr> = self.addresses.values().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        seen.left_out("addresses", all.len().saturating_sub(MAX_ADDRESSES), MAX_ADDRESSES);
        all.truncate(MAX_ADDRESSES);
        seen.value("network.address", self.source.map(|address| address.to_string().into()));
        seen.value("network.addresses", texts(&all));
        let named: Vec<&Interface> = self.interfaces.iter().filter(|one| is_key(&one.name)).collect();
        for one in named.iter().take(MAX_INTERFACES) {
            let at = |last: &str| format!("network.interfaces.{}.{last}", one.name);
            let own = self.addresses.get(&one.name).map(Vec::as_slice).unwrap_or_default();
            seen.value(&at("addresses"), texts(&own[..own.len().min(MAX_ADDRESSES)]));
            seen.text(&at("mac"), one.mac.as_deref());
            seen.number(&at("mtu"), one.mtu);
        }
        seen.left_out("interfaces", named.len().saturating_sub(MAX_INTERFACES), MAX_INTERFACES);
    }

    /// Whether a card can be shared out as virtual functions.
    pub(super) fn has_sriov(&self) -> bool {
        self.interfaces.iter().any(|one| one.has_sriov)
    }

    /// Whether a card has remote memory access.
    pub(super) fn has_rdma(&self) -> bool {
        self.interfaces.iter().any(|one| one.has_rdma)
    }
}

fn choose(
    all: &[Interface],
    routed: Option<&str>,
    addresses: impl IntoIterator<Item = Addressed>,
    source: Option<IpAddr>,
) -> Network {
    let mut kept: Vec<&Interface> = all.iter().filter(|one| stays(one, all, MAX_DEPTH)).collect();
    if kept.is_empty() {
        kept.extend(all.iter().find(|one| Some(&*one.name) == routed));
    }
    let mut own: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    let mut on_loopback = Vec::new();
    for (name, address) in addresses.into_iter().filter(|(_, address)| is_global(address)) {
        if name == "lo" {
            on_loopback.push(address);
        } else if kept.iter().any(|one| one.name == name) {
            own.entry(name).or_default().push(address);
        }
    }
    for list in own.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    // A host that tells its routers where it is (BGP) sends from an address on its loopback interface.
    let is_own = |address: &IpAddr| on_loopback.contains(address) || own.values().any(|list| list.contains(address));
    let source = source.filter(is_own).or_else(|| own.get(routed?)?.first().copied());
    Network { interfaces: kept.into_iter().cloned().collect(), addresses: own, source }
}

fn stays(one: &Interface, all: &[Interface], depth: usize) -> bool {
    if one.has_device {
        return !one.is_virtual_function;
    }
    let is_stacked = matches!(one.kind.as_deref(), None | Some("vlan" | "bond" | "bridge" | "team"));
    let is_below = |other: &&Interface| one.lower.contains(&other.name);
    is_stacked && depth > 0 && all.iter().filter(is_below).any(|lower| stays(lower, all, depth - 1))
}

fn interface(root: &Root, name: String) -> Interface {
    let at = |file: &str| format!("/sys/class/net/{name}/{file}");
    let uevent = root.text(&at("uevent")).unwrap_or_default();
    let files = root.names(&format!("/sys/class/net/{name}"));
    let mac = root.line(&at("address")).filter(|mac| is_mac(mac));
    Interface {
        has_device: root.has(&at("device")),
        is_virtual_function: root.has(&at("device/physfn")),
        kind: uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE=")).map(str::to_owned),
        lower: files.iter().filter_map(|file| file.strip_prefix("lower_")).map(str::to_owned).collect(),
        mac: mac.filter(|_| root.number(&at("addr_assign_type")) != Some(RANDOM)),
        mtu: root.number(&at("mtu")),
        has_sriov: root.number(&at("device/sriov_totalvfs")).is_some_and(|most| most > 0),
        has_rdma: root.has(&at("device/infiniband")),
        name,
    }
}

/// Octets in hexadecimal, joined by colons, not all zero.
fn is_mac(text: &str) -> bool {
    let is_octet = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.len() <= 59 && text.split(':').all(is_octet) && text.bytes().any(|byte| byte != b'0' && byte != b':')
}

fn is_global(address: &IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !is_local && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}

/// `/proc/net/if_inet6`: address, index, prefix, scope, flags, name.
fn lasting_ipv6(table: &str) -> Vec<Addressed> {
    let row = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        let flags = u8::from_str_radix(fields.nth(3)?, 16).ok()?;
        let name = fields.next()?.to_owned();
        (flags & PASSING_IPV6 == 0).then(|| (name, Ipv6Addr::from(address).into()))
    };
    table.lines().filter_map(row).collect()
}

/// `/proc/net/route`: the interface of the default route with the least metric.
fn routed_ipv4(table: &str) -> Option<String> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [name, "00000000", _, flags, _, _, metric, "00000000", ..] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        (flags & (ROUTE_UP | ROUTE_REJECT) == ROUTE_UP).then_some((metric.parse::<u32>().ok()?, name.to_owned()))
    };
    table.lines().filter_map(row).min().map(|(_, name)| name)
}

/// `/proc/net/ipv6_route`: the same.
fn routed_ipv6(table: &str) -> Option<String> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [to, "00", _, _, _, metric, _, _, flags, name] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let is_default = to.bytes().all(|byte| byte == b'0') && flags & (ROUTE_UP | ROUTE_REJECT) == ROUTE_UP;
        (is_default && name != "lo").then_some((u32::from_str_radix(metric, 16).ok()?, name.to_owned()))
    };
    table.lines().filter_map(row).min().map(|(_, name)| name)
}

fn texts(addresses: &[IpAddr]) -> Option<Value> {
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
        Interface { name: name.into(), kind: kind.map(str::to_owned), lower, ..Interface::default() }
    }

    fn kept(all: &[Interface], routed: Option<&str>) -> Vec<String> {
        choose(all, routed, [], None).interfaces.into_iter().map(|one| one.name).collect()
    }

    #[test]
    fn interfaces_that_come_and_go_are_no_facts() {
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
        assert_eq!(kept(&host, Some("br-lan")), ["bond0", "bond0.100", "br-lan", "eno1", "eno2", "team0"]);
        let container = [software("eth0", None, &[]), software("lo", None, &[]), software("veth1", None, &[])];
        assert_eq!(kept(&container, Some("eth0")), ["eth0"]);
        assert!(kept(&container, None).is_empty());
        let ring = [software("a", Some("bond"), &["b"]), software("b", Some("bond"), &["a"])];
        assert!(kept(&ring, None).is_empty());
    }

    #[test]
    fn local_and_foreign_addresses_are_no_facts() {
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
            let network = choose(&all, Some("eth0"), said(), source.map(ip));
            assert_eq!(network.source, Some(ip(expected)));
            assert_eq!(network.addresses["eth0"], ["10.0.0.9", "10.0.0.10", "fd00::2"].map(ip));
            assert_eq!(network.addresses.len(), 1);
        }
        assert_eq!(choose(&all, None, said(), None).source, None);
    }

    #[test]
    fn a_passing_ipv6_address_is_no_fact() {
        let row = |flags: &str| format!("20010db8000000000000000000000001 02 40 00 {flags}     eth0\n");
        for (flags, lasts) in [("80", true), ("00", true), ("20", true), ("01", false), ("40", false), ("08", false)] {
            assert_eq!(lasting_ipv6(&row(flags)).len() == 1, lasts, "{flags}");
        }
        assert!(lasting_ipv6("x\n\n1 2 3\n20010db8000000000000000000000001ff 02 40 00 80 eth0\n").is_empty());
    }

    #[test]
    fn the_default_route_is_the_one_of_least_metric() {
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
            assert_eq!(routed_ipv4(&table).as_deref(), expected, "{table}");
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
            assert_eq!(routed_ipv6(&table).as_deref(), expected, "{table}");
        }
    }

    #[test]
    fn a_hardware_address_is_octets() {
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
