import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.Properties;

/** The servers that WALRELAY_EXAMPLE_POSTGRES and WALRELAY_EXAMPLE_KAFKA name. */
final class Servers {
    private Servers() {}

    static Connection connect() throws SQLException {
        URI url = URI.create(System.getenv("WALRELAY_EXAMPLE_POSTGRES"));
        String[] login = (url.getUserInfo() + ":").split(":", 3);
        Connection connection = DriverManager.getConnection(
            "jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath(), login[0], login[1]);
        connection.setAutoCommit(false);
        return connection;
    }

    static Properties kafka() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", System.getenv("WALRELAY_EXAMPLE_KAFKA"));
        String bytes = "org.apache.kafka.common.serialization.ByteArray";
        properties.put("key.serializer", bytes + "Serializer");
        properties.put("value.serializer", bytes + "Serializer");
        properties.put("key.deserializer", bytes + "Deserializer");
        properties.put("value.deserializer", bytes + "Deserializer");
        return properties;
    }
}
