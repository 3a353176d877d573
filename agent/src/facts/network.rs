//! Networks: interfaces from `/sys/class/net`, IPv4 addresses from sysinfo, and IPv6 addresses from
//! `/proc/net/if_inet6`, the only source that distinguishes temporary addresses.
//!
//! A fact must not change by itself, so not every interface is reported:
//! - An interface that is backed by hardware, real or virtual, is reported. An exception is a virtual function of a
//!   card of this host, because the host passes virtual functions to guests for some time.
//! - A VLAN, bond, team or bridge is reported if an interface below it is reported, because it often has the host's
//!   address.
//! - Other software interfaces (loopback, bridges of containers and guests, veth, tap, tunnels, macvlan) are not
//!   reported.
//! - If these rules select no interface, as in a container, only the one of the default route is reported.
//!
//! An address of a reported interface is reported unless it is loopback, link-local, multicast, broadcast, temporary,
//! tentative or failed. An interface with a dot in its name (`eth0.100`) would be two keys of a fact's path. So its
//! addresses are in `network.addresses`, and it has no `network.interfaces.*` facts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use serde_json::Value;
use sysinfo::{NetworkData, Networks};

use super::source::HostRoot;
use super::{HostFacts, is_key};

/// Maximum number of interfaces in the facts. A finding contains the number of omitted interfaces.
const MAX_INTERFACES: usize = 64;
/// Maximum number of addresses in the fact `network.addresses`, and in the fact of each interface.
const MAX_ADDRESSES: usize = 256;
/// Maximum depth of stacked interfaces, such as a bridge on a VLAN on a bond.
const MAX_DEPTH: usize = 8;
/// Flags of an IPv6 address that is not permanent: temporary, failed (another host has it), or tentative.
const VOLATILE_IPV6_FLAGS: u8 = 0x01 | 0x08 | 0x40;
/// Flag of a route that is in use.
const ROUTE_UP: u32 = 0x1;
/// Flag of a route that rejects packets.
const ROUTE_REJECT: u32 = 0x200;
/// Value of the file `addr_assign_type` for an interface with a random hardware address.
const ADDR_ASSIGN_RANDOM: u64 = 1;

/// The name of an interface and one of its addresses.
pub(super) type InterfaceAddress = (String, IpAddr);

/// The properties of a network interface in `/sys/class/net`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    name: String,
    /// True if the interface is backed by hardware, real or virtual.
    has_device: bool,
    is_virtual_function: bool,
    /// The type that the kernel reports (`DEVTYPE`), such as `vlan`. Most network cards have none.
    kind: Option<String>,
    /// The names of the interfaces on which this interface is built, such as the members of a bond.
    lower_names: Vec<String>,
    mac: Option<String>,
    mtu: Option<u64>,
    has_sriov: bool,
    has_rdma: bool,
}

/// The interfaces that [`select`] chose, and their addresses. The agent takes facts and traits from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    interfaces: Vec<Interface>,
    /// The addresses by the name of their interface.
    addresses: BTreeMap<String, Vec<IpAddr>>,
    /// The address from which this host sends on its default route, or the one that [`select`] chose in its place.
    source: Option<IpAddr>,
}

/// Returns the current IPv4 addresses of the host, each with the name of its interface.
pub(super) fn read_ipv4() -> Vec<InterfaceAddress> {
    // If this list cannot be read, the facts contain no IPv4 addresses. The interfaces are read from `/sys`.
    let Ok(networks) = Networks::new_with_refreshed_list() else { return Vec::new() };
    let to_addresses = |(name, data): (&OsString, &NetworkData)| -> Vec<InterfaceAddress> {
        let Some(name) = name.to_str() else { return Vec::new() };
        let addresses = data.ip_networks().iter().map(|network| network.addr);
        addresses.filter(IpAddr::is_ipv4).map(|address| (name.to_owned(), address)).collect()
    };
    networks.iter().flat_map(to_addresses).collect()
}

/// Returns the address from which this host sends on its default route: the IPv4 address, or else the IPv6 address.
///
/// This connects a UDP socket, which sends no packet, and reads the local address of the socket. The destinations are
/// addresses that are reserved for documentation, so no host has a more specific route to them.
pub(super) fn default_source() -> Option<IpAddr> {
    let v4 = (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(203, 0, 113, 1).into());
    let v6 = (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into());
    let local_address = |(bind_address, remote): (IpAddr, IpAddr)| {
        let socket = UdpSocket::bind(SocketAddr::new(bind_address, 0)).ok()?;
        // The port has no effect, because nothing is sent.
        socket.connect(SocketAddr::new(remote, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    [v4, v6].into_iter().filter_map(local_address).find(is_global)
}

/// Returns the interfaces and addresses that the facts contain, according to [`select`]. `ipv4` is the result of
/// [`read_ipv4`], and `source` is the result of [`default_source`].
pub(super) fn read(root: &HostRoot, ipv4: &[InterfaceAddress], source: Option<IpAddr>) -> Network {
    let interfaces: Vec<Interface> = root.names("/sys/class/net").into_iter().map(|name| read_interface(root, name)).collect();
    let default_interface = default_route_ipv4(&root.text("/proc/net/route").unwrap_or_default())
        .or_else(|| default_route_ipv6(&root.text("/proc/net/ipv6_route").unwrap_or_default()));
    let ipv6 = stable_ipv6(&root.text("/proc/net/if_inet6").unwrap_or_default());
    select(&interfaces, default_interface.as_deref(), ipv4.iter().cloned().chain(ipv6), source)
}

impl Network {
    /// Adds the facts `network.*`, and findings about what a limit omits. An interface whose name contains a dot has no
    /// facts `network.interfaces.*`, because its name cannot be a part of a path.
    pub(super) fn add_facts(&self, facts: &mut HostFacts) {
        let mut addresses: Vec<IpAddr> = self.addresses.values().flatten().copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        facts.add_limit_finding("addresses", addresses.len().saturating_sub(MAX_ADDRESSES), MAX_ADDRESSES);
        addresses.truncate(MAX_ADDRESSES);
        facts.add_value("network.address", self.source.map(|address| address.to_string().into()));
        facts.add_value("network.addresses", to_json(&addresses));
        let named_interfaces: Vec<&Interface> = self.interfaces.iter().filter(|interface| is_key(&interface.name)).collect();
        for interface in named_interfaces.iter().take(MAX_INTERFACES) {
            let path_of = |key: &str| format!("network.interfaces.{}.{key}", interface.name);
            let ips = self.addresses.get(&interface.name).map(Vec::as_slice).unwrap_or_default();
            facts.add_value(&path_of("addresses"), to_json(&ips[..ips.len().min(MAX_ADDRESSES)]));
            facts.add_text(&path_of("mac"), interface.mac.as_deref());
            facts.add_number(&path_of("mtu"), interface.mtu);
        }
        facts.add_limit_finding("interfaces", named_interfaces.len().saturating_sub(MAX_INTERFACES), MAX_INTERFACES);
    }

    /// Returns whether a network card of the host supports virtual functions.
    pub(super) fn has_sriov(&self) -> bool {
        self.interfaces.iter().any(|interface| interface.has_sriov)
    }

    /// Returns whether a network card of the host supports remote memory access (RDMA).
    pub(super) fn has_rdma(&self) -> bool {
        self.interfaces.iter().any(|interface| interface.has_rdma)
    }
}

/// Selects the interfaces and addresses for the facts from those that exist on the host.
///
/// Selects the permanent interfaces, or only `default_interface` (the interface of the default route) if no interface
/// is permanent. Omits the addresses of other interfaces, and addresses at which other hosts cannot reach this host.
///
/// `source` is the address from which the host sends on the default route. If it is `None`, or not an address of the
/// selected interfaces or of loopback, the first reported address of `default_interface`, if any, replaces it.
fn select(
    interfaces: &[Interface],
    default_interface: Option<&str>,
    addresses: impl IntoIterator<Item = InterfaceAddress>,
    source: Option<IpAddr>,
) -> Network {
    let mut selected: Vec<&Interface> = interfaces.iter().filter(|entry| is_stable(entry, interfaces, MAX_DEPTH)).collect();
    if selected.is_empty() {
        selected.extend(interfaces.iter().find(|interface| Some(&*interface.name) == default_interface));
    }
    let mut interface_ips: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    let mut loopback_ips = Vec::new();
    for (name, address) in addresses.into_iter().filter(|(_, address)| is_global(address)) {
        if name == "lo" {
            loopback_ips.push(address);
        } else if selected.iter().any(|interface| interface.name == name) {
            interface_ips.entry(name).or_default().push(address);
        }
    }
    for list in interface_ips.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    // If a host announces its address to routers (BGP), it sends from an address of its loopback interface.
    let is_local = |address: &IpAddr| loopback_ips.contains(address) || interface_ips.values().any(|list| list.contains(address));
    let source = source.filter(is_local).or_else(|| interface_ips.get(default_interface?)?.first().copied());
    Network { interfaces: selected.into_iter().cloned().collect(), addresses: interface_ips, source }
}

/// Returns whether an interface is permanent: it is hardware, or it is a VLAN, bond, bridge or team on a permanent
/// interface. A virtual function of a card is not permanent. `depth` is the maximum number of further levels to
/// examine, because a faulty host may report a ring of interfaces.
fn is_stable(interface: &Interface, interfaces: &[Interface], depth: usize) -> bool {
    if interface.has_device {
        return !interface.is_virtual_function;
    }
    // The kernel may report no type for a team (`None`).
    let is_stacked = matches!(interface.kind.as_deref(), None | Some("vlan" | "bond" | "bridge" | "team"));
    let is_lower = |other: &&Interface| interface.lower_names.contains(&other.name);
    is_stacked && depth > 0 && interfaces.iter().filter(is_lower).any(|lower| is_stable(lower, interfaces, depth - 1))
}

/// Reads the interface with this name from `/sys/class/net`. Omits a random hardware address, because it changes at
/// each boot.
fn read_interface(root: &HostRoot, name: String) -> Interface {
    let path_of = |file: &str| format!("/sys/class/net/{name}/{file}");
    let uevent = root.text(&path_of("uevent")).unwrap_or_default();
    let files = root.names(&format!("/sys/class/net/{name}"));
    let mac = root.line(&path_of("address")).filter(|mac| is_mac(mac));
    Interface {
        has_device: root.exists(&path_of("device")),
        is_virtual_function: root.exists(&path_of("device/physfn")),
        kind: uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE=")).map(str::to_owned),
        lower_names: files.iter().filter_map(|file| file.strip_prefix("lower_")).map(str::to_owned).collect(),
        mac: mac.filter(|_| root.number(&path_of("addr_assign_type")) != Some(ADDR_ASSIGN_RANDOM)),
        mtu: root.number(&path_of("mtu")),
        has_sriov: root.number(&path_of("device/sriov_totalvfs")).is_some_and(|max_functions| max_functions > 0),
        has_rdma: root.exists(&path_of("device/infiniband")),
        name,
    }
}

/// Returns whether a text is a hardware address: hexadecimal octets that are separated by colons. An address of zeros
/// is not valid. The longest address is that of InfiniBand, with 20 octets.
fn is_mac(text: &str) -> bool {
    let is_octet = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.len() <= 59 && text.split(':').all(is_octet) && text.bytes().any(|byte| byte != b'0' && byte != b':')
}

/// Returns whether other hosts can reach this host at an address. They cannot if it is a loopback, link-local,
/// multicast, broadcast or unspecified address.
fn is_global(address: &IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !is_local && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}

/// Returns the permanent IPv6 addresses in `/proc/net/if_inet6`, each with the name of its interface. A line of the
/// file has the fields address, index, prefix length, scope, flags and name.
fn stable_ipv6(table: &str) -> Vec<InterfaceAddress> {
    let parse_line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        let flags = u8::from_str_radix(fields.nth(3)?, 16).ok()?;
        let name = fields.next()?.to_owned();
        (flags & VOLATILE_IPV6_FLAGS == 0).then(|| (name, Ipv6Addr::from(address).into()))
    };
    table.lines().filter_map(parse_line).collect()
}

/// Returns the interface of the default route in `/proc/net/route`. If there are several default routes, returns that
/// of the route with the lowest metric.
///
/// A line has the fields interface, destination, gateway, flags, two counters, metric and mask. Destination and mask
/// of a default route are zero.
fn default_route_ipv4(table: &str) -> Option<String> {
    let parse_line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [name, "00000000", _, flags, _, _, metric, "00000000", ..] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        (flags & (ROUTE_UP | ROUTE_REJECT) == ROUTE_UP).then_some((metric.parse::<u32>().ok()?, name.to_owned()))
    };
    table.lines().filter_map(parse_line).min().map(|(_, name)| name)
}

/// Returns the interface of the default route with the lowest metric in `/proc/net/ipv6_route`. Ignores routes of the
/// loopback interface, by which the kernel rejects packets without a route.
///
/// A line has the fields destination, its prefix length, source, its prefix length, gateway, metric, two counters,
/// flags and interface. Destination and prefix length of a default route are zero.
fn default_route_ipv6(table: &str) -> Option<String> {
    let parse_line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [destination, "00", _, _, _, metric, _, _, flags, name] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let is_default = destination.bytes().all(|byte| byte == b'0') && flags & (ROUTE_UP | ROUTE_REJECT) == ROUTE_UP;
        (is_default && name != "lo").then_some((u32::from_str_radix(metric, 16).ok()?, name.to_owned()))
    };
    table.lines().filter_map(parse_line).min().map(|(_, name)| name)
}

/// Returns the addresses as a JSON list of texts, or `None` if there are none.
fn to_json(addresses: &[IpAddr]) -> Option<Value> {
    (!addresses.is_empty()).then(|| addresses.iter().map(ToString::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hardware(name: &str) -> Interface {
        Interface { name: name.into(), has_device: true, ..Interface::default() }
    }

    fn software(name: &str, kind: Option<&str>, lower_names: &[&str]) -> Interface {
        let lower_names = lower_names.iter().map(|&name| name.to_owned()).collect();
        Interface { name: name.into(), kind: kind.map(str::to_owned), lower_names, ..Interface::default() }
    }

    fn selected_names(interfaces: &[Interface], default_interface: Option<&str>) -> Vec<String> {
        select(interfaces, default_interface, [], None).interfaces.into_iter().map(|interface| interface.name).collect()
    }

    /// The first host has interfaces of all kinds. In the container no interface is permanent, so only the interface of
    /// the default route is selected. The last host has a ring of two bonds, each built on the other.
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

    /// `select` omits the addresses of `docker0`, which is not permanent, and those that other hosts cannot reach. Each
    /// case contains the source address of the default route, and the one that `select` returns. The source
    /// `192.0.2.77` of loopback remains, but `172.17.0.1` of `docker0` is replaced by the first address of `eth0`.
    #[test]
    fn select_omits_local_addresses_and_replaces_unselected_source() {
        let interfaces = [hardware("eth0"), software("docker0", Some("bridge"), &[]), software("lo", None, &[])];
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let addresses = [
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
        let addresses = || addresses.iter().map(|(name, address)| ((*name).to_owned(), ip(address)));
        for (source, expected) in [
            (Some("10.0.0.10"), "10.0.0.10"),
            (Some("192.0.2.77"), "192.0.2.77"),
            (Some("172.17.0.1"), "10.0.0.9"),
            (None, "10.0.0.9"),
        ] {
            let network = select(&interfaces, Some("eth0"), addresses(), source.map(ip));
            assert_eq!(network.source, Some(ip(expected)));
            assert_eq!(network.addresses["eth0"], ["10.0.0.9", "10.0.0.10", "fd00::2"].map(ip));
            assert_eq!(network.addresses.len(), 1);
        }
        assert_eq!(select(&interfaces, None, addresses(), None).source, None);
    }

    /// The flags 01, 08 and 40 mark an address that is temporary, failed or tentative. Malformed lines are ignored.
    #[test]
    fn stable_ipv6_omits_temporary_address() {
        let address_line = |flags: &str| format!("20010db8000000000000000000000001 02 40 00 {flags}     eth0\n");
        for (flags, is_permanent) in [("80", true), ("00", true), ("20", true), ("01", false), ("40", false), ("08", false)] {
            assert_eq!(stable_ipv6(&address_line(flags)).len() == 1, is_permanent, "{flags}");
        }
        assert!(stable_ipv6("x\n\n1 2 3\n20010db8000000000000000000000001ff 02 40 00 80 eth0\n").is_empty());
    }

    /// The first cases are tables of IPv4 routes, and the later cases are tables of IPv6 routes. A route is usable if
    /// its flags contain 1 (in use) and not 200 (rejects packets). The last argument of `route_line` is the metric.
    #[test]
    fn default_route_is_usable_and_has_lowest_metric() {
        let header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let route_line = |name: &str, destination: &str, flags: &str, metric: u32| {
            format!("{name}\t{destination}\t010200C0\t{flags}\t0\t0\t{metric}\t00000000\t0\t0\t0\n")
        };
        let wifi = route_line("wlan0", "00000000", "0003", 600);
        for (table, expected) in [
            (format!("{header}{wifi}{}", route_line("eth0", "00000000", "0003", 100)), Some("eth0")),
            (format!("{header}{wifi}{}", route_line("lo", "00000000", "0201", 0)), Some("wlan0")),
            (format!("{header}{}", route_line("eth0", "000200C0", "0001", 0)), None),
            (header.to_owned(), None),
            ("garbage\n\0".to_owned(), None),
        ] {
            assert_eq!(default_route_ipv4(&table).as_deref(), expected, "{table}");
        }
        let zero = "0".repeat(32);
        let ipv6_route_line = |flags: &str, name: &str| {
            format!("{zero} 00 {zero} 00 fe80000000000000000000000000000a 00000400 1 0 {flags}     {name}\n")
        };
        for (table, expected) in [
            (ipv6_route_line("00450003", "eth0"), Some("eth0")),
            (ipv6_route_line("00200200", "lo"), None),
            (ipv6_route_line("00000003", "lo"), None),
            (ipv6_route_line("zz", "eth0"), None),
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
