# Groups records under keys, adds them up, and takes all of it down at its end.
my %of;
push @{ $of{ 'key' . $_ % 853 } }, { number => $_, text => 'y' x ( $_ % 45 ) } for 1 .. 14000;
my $sum = 0;
for my $key ( sort keys %of ) { $sum += length $_->{text} for @{ $of{$key} } }
my @lists = map {
    my $n = $_;
    join ',', map { $_ * $n } 1 .. $n % 19
} 1 .. 4000;
print "$sum ", length( join ';', @lists ), "\n";
